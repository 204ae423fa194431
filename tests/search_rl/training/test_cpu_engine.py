"""The CPU engine against verl's own FSDP engine and against a plain forward pass, on a real (tiny) model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.search_rl.training.engine_batches import EPISODES, Episode, batch_of, loss_and_gradients, make_engine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]


@pytest.fixture(scope="module")
def engines(model_path: Path, process_group: None) -> tuple[Any, Any]:
    """Ours and verl's, on the same weights."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from search_rl.training.cpu_engine import CpuEngine

    return make_engine(CpuEngine, model_path), make_engine(FSDPEngineWithLMHead, model_path)


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


def test_micro_batch_of_rows_without_a_loss_alone_goes_through(engines: tuple[Any, Any]) -> None:
    """Would catch a step that dies where void or padding rows share a micro-batch with nobody."""
    alone = [EPISODES[0], replace(EPISODES[3], prompt=[4] * 8), replace(EPISODES[3], prompt=[4] * 9)]
    ours, verls = (loss_and_gradients(engine, alone) for engine in engines)
    assert ours[0] == pytest.approx(verls[0], rel=1e-5)
    for name, gradient in verls[1].items():
        torch.testing.assert_close(ours[1][name], gradient, atol=1e-6, rtol=1e-3, msg=name)
    with engines[0].eval_mode():
        output = engines[0].forward_backward_batch(batch_of(alone[1:]), None, forward_only=True)
    assert not torch.cat(list(output["model_output"]["log_probs"].unbind())).any()


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
