"""A group with void siblings, from the agent loop to the loss, against numbers computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from search_rl.types import (
    Answer,
    Observation,
    Origin,
    Question,
    Reward,
    Rollout,
    Search,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)
from tests.search_rl.training.engine_batches import Episode, batch_of, loss_and_gradients, make_engine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]


@pytest.fixture(scope="module")
def engines(model_path: Path, process_group: None) -> tuple[Any, Any]:
    """The one for CPUs, and verl's own with what ours add."""
    from search_rl.training.cpu_engine import CpuEngine
    from search_rl.training.gpu_engine import GpuEngine

    return make_engine(CpuEngine, model_path), make_engine(GpuEngine, model_path)


def rollout(response: list[int], mask: list[int], reward: Reward, *, stop: StopReason = StopReason.ANSWERED) -> Rollout:
    """An episode of one search at most: policy tokens, then retrieved ones, then policy tokens."""
    end = mask.index(0) if 0 in mask else len(mask)
    start = end + mask.count(0)
    first = Segment(Origin.POLICY, tuple(response[:end]), (-10.8,) * end)
    turns: tuple[Turn, ...] = (Turn(first, "", Answer("x")),)
    if start < len(response):
        seen = Segment(Origin.ENVIRONMENT, tuple(response[end:start]))
        last = Segment(Origin.POLICY, tuple(response[start:]), (-10.8,) * (len(response) - start))
        turns = (Turn(first, "", Search("q"), Observation("o"), seen), Turn(last, "", Answer("x")))
    question = Question("1", "?", ("x",), "toy")
    return Rollout(Trajectory(question, Segment(Origin.PROMPT, (5, 6, 7)), turns, stop), reward, "group")


GROUP = [
    rollout([11, 12, 901, 14], [1, 1, 0, 1], Reward(1.0)),
    rollout([21, 22], [1, 1], Reward(0.0)),
    rollout([31, 32, 902, 33, 34], [1, 1, 0, 1, 1], Reward(0.0), stop=StopReason.SEARCH_FAILED),
    rollout([41, 42, 43], [1, 1, 1], Reward(0.0, failure="reward part 'm:f' gave nan")),
]


@pytest.mark.parametrize(("loss_agg_mode", "denominator"), [("token-mean", 5), ("seq-mean-token-sum", 2)])
@pytest.mark.parametrize("engine_index", [0, 1], ids=["ours", "verl"])
def test_group_with_void_episodes_has_the_loss_that_was_computed_by_hand(
    engines: tuple[Any, Any], engine_index: int, loss_agg_mode: str, denominator: int
) -> None:
    """Would catch a void sibling in the group's mean (then .25, not .5), in the loss, or in what it is divided by."""
    from search_rl.algorithms.grpo import group_advantages
    from search_rl.training.agent_loop import agent_loop_output

    rows = [agent_loop_output(one, {}) for one in GROUP]
    masks = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.response_mask) for row in rows], batch_first=True)
    credit = group_advantages(torch.tensor([row.reward_score for row in rows]), masks, ["group"] * 4).amax(dim=1)
    credit += group_advantages(torch.tensor([row.reward_score for row in rows]), masks, ["group"] * 4).amin(dim=1)
    by_hand = [0.5 / 0.5**0.5, -0.5 / 0.5**0.5, 0.0, 0.0]
    assert credit.tolist() == pytest.approx(by_hand, abs=1e-5)
    episodes = [Episode(r.prompt_ids, r.response_ids, r.response_mask, a) for r, a in zip(rows, by_hand, strict=True)]
    with engines[engine_index].eval_mode():
        output = engines[engine_index].forward_backward_batch(batch_of(episodes), None, forward_only=True)
    losses = []
    for episode, log_probs in zip(episodes[:2], output["model_output"]["log_probs"].unbind(), strict=False):
        sampled = log_probs[len(episode.prompt) - 1 : -1][torch.tensor(episode.mask).bool()]
        ratio = (sampled + 10.8).exp()
        losses.append(-torch.min(ratio * episode.advantage, ratio.clamp(0.8, 1.2) * episode.advantage).sum().item())
    loss, _ = loss_and_gradients(engines[engine_index], episodes, with_entropy=False, loss_agg_mode=loss_agg_mode)
    assert loss == pytest.approx(sum(losses) / denominator, rel=1e-3)
