"""The CPU engine against verl's own FSDP engine and against a plain forward pass, on a real (tiny) model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from search_rl.models import export_tiny
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

pytestmark = pytest.mark.engine
VOCABULARY = 49152


@dataclass(frozen=True, slots=True)
class Episode:
    """Ids and mask as an agent loop hands them over, with what GRPO and the rollout add."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    advantage: float


EPISODES = [
    Episode([5, 6, 7], [11, 12, 13, 901, 902, 14, 15], [1, 1, 1, 0, 0, 1, 1], 0.9),
    Episode([5, 6, 7, 8, 9], [21, 22, 903, 904, 905], [1, 1, 0, 0, 0], -0.4),
    Episode([3], [31], [1], 1.3),
    Episode([4, 4, 4], [41, 42, 43], [0, 0, 0], 0.0),
]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    export_tiny(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    from verl.utils.net_utils import get_free_port

    port, _ = get_free_port("127.0.0.1")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("cpu:gloo")
    yield
    torch.distributed.destroy_process_group()


def make_engine(engine_class: type[Any], model_path: Path) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    model = HFModelConfig(
        path=str(model_path),
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    model.model_type = "language_model"
    engine = engine_class(
        model,
        FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32"},
        ),
        FSDPOptimizerConfig(lr=1e-3, total_training_steps=4),
        CheckpointConfig(),
    )
    engine.initialize()
    return engine


@pytest.fixture(scope="module")
def engines(model_path: Path) -> tuple[Any, Any]:
    """Ours and verl's (with our denominator of sequence means), on the same weights."""
    from search_rl.training.cpu_engine import CpuEngine
    from search_rl.training.live_rows import LiveRowsEngine

    return make_engine(CpuEngine, model_path), make_engine(LiveRowsEngine, model_path)


def batch_of(episodes: list[Episode], *, with_entropy: bool = True) -> Any:
    """The batch that verl's trainer would send to the engine."""
    from verl.utils import tensordict_utils as tu

    def jagged(rows: list[list[Any]], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)

    masks = [episode.mask for episode in episodes]
    tensors = {
        "prompts": jagged([episode.prompt for episode in episodes]),
        "responses": jagged([episode.response for episode in episodes]),
        "input_ids": jagged([episode.prompt + episode.response for episode in episodes]),
        "position_ids": jagged([list(range(len(e.prompt) + len(e.response))) for e in episodes]),
        "response_mask": jagged(masks),
        "loss_mask": jagged(masks),
        "old_log_probs": jagged([[-10.8] * len(mask) for mask in masks], torch.float32),
        "advantages": jagged([[e.advantage * bit for bit in e.mask] for e in episodes], torch.float32),
    }
    settings = {
        "temperature": 1.0,
        "use_dynamic_bsz": True,
        "use_remove_padding": False,
        "max_token_len_per_gpu": 14,
        "global_batch_size": len(episodes),
        "calculate_entropy": with_entropy,
    }
    return tu.get_tensordict(tensors, settings)


def loss_and_gradients(
    engine: Any, episodes: list[Episode], *, with_entropy: bool = True, loss_agg_mode: str = "token-mean"
) -> tuple[float, dict[str, torch.Tensor]]:
    """One training pass with verl's PPO loss; the optimiser does not step."""
    from verl.workers.config import FSDPActorConfig
    from verl.workers.utils.losses import ppo_loss

    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_mini_batch_size=4,
        use_dynamic_bsz=True,
        entropy_coeff=0.01 if with_entropy else 0.0,
        loss_agg_mode=loss_agg_mode,
    )
    with engine.train_mode():
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(
            batch_of(episodes, with_entropy=with_entropy), partial(ppo_loss, config=actor)
        )
        gradients = {
            name: (parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad).clone()
            for name, parameter in engine.module.named_parameters()
            if parameter.grad is not None
        }
    return sum(output["loss"]), gradients


def changed(episode: Episode, index: int, token_id: int) -> Episode:
    """The episode with one response token replaced."""
    response = [token_id if place == index else old for place, old in enumerate(episode.response)]
    return Episode(episode.prompt, response, episode.mask, episode.advantage)


def test_loss_and_gradients_equal_verls_own(engines: tuple[Any, Any]) -> None:
    """Would catch logits at wrong positions, rows lost by sorting, and a padding that attention can see."""
    ours, verls = (loss_and_gradients(engine, EPISODES) for engine in engines)
    assert ours[0] == pytest.approx(verls[0], rel=1e-5)
    assert ours[1].keys() == verls[1].keys()
    for name, gradient in verls[1].items():
        torch.testing.assert_close(ours[1][name], gradient, atol=1e-6, rtol=1e-3, msg=name)


def test_log_probs_equal_verls_own_in_input_order(engines: tuple[Any, Any]) -> None:
    """Would catch outputs that come back in sorted order, and log-probs that belong to a neighbour's token."""
    results = []
    for engine in engines:
        with engine.eval_mode():
            output = engine.forward_backward_batch(batch_of(EPISODES), None, forward_only=True)
        results.append(output["model_output"]["log_probs"].unbind())
    for episode, ours, verls in zip(EPISODES, *results, strict=True):
        start = len(episode.prompt) - 1
        for place, bit in enumerate(episode.mask):
            expected = verls[start + place].item() if bit else 0.0
            assert ours[start + place].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("engine_index", [0, 1], ids=["ours", "verl"])
def test_retrieved_token_that_nothing_follows_changes_neither_loss_nor_gradient(
    engines: tuple[Any, Any], engine_index: int
) -> None:
    """Would catch a retrieved token in the loss: it is perturbed where no later token could see it."""
    engine = engines[engine_index]
    perturbed = [EPISODES[0], changed(EPISODES[1], 4, 777), *EPISODES[2:]]
    loss, gradients = loss_and_gradients(engine, EPISODES)
    other_loss, other_gradients = loss_and_gradients(engine, perturbed)
    assert other_loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(other_gradients[name], gradient, atol=1e-7, rtol=1e-4, msg=name)


def test_retrieved_token_acts_through_the_context_alone(engines: tuple[Any, Any], model_path: Path) -> None:
    """Would catch a gradient through a retrieved token's own log-prob: the loss is written out by hand instead."""
    from transformers import AutoModelForCausalLM

    episode = changed(EPISODES[0], 3, 778)
    loss, gradients = loss_and_gradients(engines[0], [episode])
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ids = torch.tensor(episode.prompt + episode.response)
    logits = model(input_ids=ids[None]).logits[0]
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    terms = []
    for place, bit in enumerate(episode.mask):
        position = len(episode.prompt) + place - 1
        if bit:
            ratio = (log_probs[position, ids[position + 1]] + 10.8).exp()
            clipped = ratio.clamp(0.8, 1.2)
            terms.append(-torch.min(ratio * episode.advantage, clipped * episode.advantage) - 0.01 * entropy[position])
    by_hand = torch.stack(terms).mean()
    by_hand.backward()
    assert loss == pytest.approx(by_hand.item(), rel=1e-4)
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-3, msg=name)


def test_void_batch_has_no_loss_and_no_gradient(engines: tuple[Any, Any]) -> None:
    """Would catch a void episode that still pulls on the weights beside a live one, through the denominator."""
    with_void = loss_and_gradients(engines[0], EPISODES)
    without = loss_and_gradients(engines[0], EPISODES[:3])
    assert with_void[0] == pytest.approx(without[0], rel=1e-6)
    for name, gradient in without[1].items():
        torch.testing.assert_close(with_void[1][name], gradient, atol=1e-7, rtol=1e-4, msg=name)


def test_rows_without_advantage_are_left_out_of_the_policy_loss_exactly(
    engines: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a denominator that shrinks with the rows left out, and a row that is computed for nothing."""
    episodes = [*EPISODES, Episode([6, 7], [51, 52, 53], [1, 1, 1], 0.0), Episode([8], [61, 62], [1, 0], 0.0)]
    computed: list[int] = []
    step = type(engines[0]).forward_step

    def counted(engine: Any, rows: Any, *rest: Any) -> Any:
        computed.append(len(rows))
        return step(engine, rows, *rest)

    monkeypatch.setattr(type(engines[0]), "forward_step", counted)
    ours, verls = (loss_and_gradients(engine, episodes, with_entropy=False) for engine in engines)
    assert sum(computed) == 3
    assert ours[0] == pytest.approx(verls[0], rel=1e-5)
    for name, gradient in verls[1].items():
        torch.testing.assert_close(ours[1][name], gradient, atol=1e-6, rtol=1e-3, msg=name)


def test_batch_without_any_advantage_still_makes_a_step(engines: tuple[Any, Any]) -> None:
    """Would catch a step that fails, or moves the weights, when every group has equal rewards."""
    equal = [Episode(episode.prompt, episode.response, episode.mask, 0.0) for episode in EPISODES]
    loss, gradients = loss_and_gradients(engines[0], equal, with_entropy=False)
    assert loss == 0.0
    assert all(not gradient.any() for gradient in gradients.values())


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
