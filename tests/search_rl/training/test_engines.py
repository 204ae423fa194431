"""What our engines add to verl's: void rows, updates that must not be taken, critic, adapters. A tiny real model."""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.search_rl.training.engine_batches import (
    EPISODES,
    Episode,
    batch_of,
    loss_and_gradients,
    make_engine,
    policy_loss,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]
VOID = Episode([4, 4, 4], [41, 42, 43], [0, 0, 0], 0.0)


@pytest.fixture(scope="module")
def engine(model_path: Path, process_group: None) -> Any:
    from search_rl.training.cpu_engine import CpuEngine

    return make_engine(CpuEngine, model_path)


@pytest.fixture(scope="module")
def verl_engine(model_path: Path, process_group: None) -> Any:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    return make_engine(FSDPEngineWithLMHead, model_path)


@pytest.fixture(scope="module")
def critic(model_path: Path, process_group: None) -> Any:
    from search_rl.training.cpu_engine import CpuCritic

    return make_engine(CpuCritic, model_path, model_type="value_model")


@pytest.fixture(scope="module")
def adapted(model_path: Path, process_group: None) -> Any:
    from search_rl.training.cpu_engine import CpuEngine

    return make_engine(CpuEngine, model_path, lora_rank=4)


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}


def update(engine: Any, episodes: list[Episode], **settings: Any) -> dict[str, Any]:
    """One optimiser step; its metrics."""
    with engine.train_mode():
        metrics: dict[str, Any] = engine.train_batch(batch_of(episodes), policy_loss(**settings))["metrics"]
    return metrics


@pytest.mark.parametrize("average", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_void_rows_are_in_no_denominator(engine: Any, average: str) -> None:
    """Would catch verl's own division by all rows, void and padded ones too, in the sequence averages."""
    settings: dict[str, Any] = {"loss_agg_mode": average, "loss_scale_factor": 16}
    with_void = loss_and_gradients(engine, [*EPISODES[:3], VOID, VOID], **settings)
    without = loss_and_gradients(engine, EPISODES[:3], **settings)
    assert with_void[0] == pytest.approx(without[0], rel=1e-6)
    for name, gradient in without[1].items():
        torch.testing.assert_close(with_void[1][name], gradient, atol=1e-7, rtol=1e-4, msg=name)


def test_verl_divides_by_void_rows(verl_engine: Any) -> None:
    """Would catch a verl that has mended it, so that ours may go: 3 of 5 rows are live, so its loss is 3/5."""
    with_void = loss_and_gradients(verl_engine, [*EPISODES[:3], VOID, VOID], loss_agg_mode="seq-mean-token-mean")
    without = loss_and_gradients(verl_engine, EPISODES[:3], loss_agg_mode="seq-mean-token-mean")
    assert with_void[0] == pytest.approx(without[0] * 3 / 5, rel=1e-5)


def test_loss_that_is_no_number_moves_nothing_and_is_counted(engine: Any) -> None:
    """Would catch NaN in the weights, and a streak that a good update does not end."""
    bad = [Episode([5, 6], [11, 12], [1, 1], nan), *EPISODES[:2]]
    before = weights_of(engine)
    for in_a_row in (1.0, 2.0):
        metrics = update(engine, bad)
        assert isnan(metrics["grad_norm"])
        assert (metrics["skipped_share"], metrics["max_skipped_in_a_row"]) == ([1.0], [in_a_row])
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(engine).items())
    metrics = update(engine, EPISODES)
    assert (metrics["skipped_share"], metrics["max_skipped_in_a_row"]) == ([0.0], [0.0])
    assert any(not torch.equal(before[name], weight) for name, weight in weights_of(engine).items())


def test_infinite_gradient_of_a_finite_loss_moves_nothing(engine: Any) -> None:
    """Would catch a clip that multiplies infinity by zero and steps on the result."""
    parameter = next(engine.module.parameters())
    hook = parameter.register_hook(lambda gradient: gradient * float("inf"))
    before = weights_of(engine)
    metrics = update(engine, EPISODES)
    hook.remove()
    assert metrics["max_skipped_in_a_row"] == [1.0]
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(engine).items())
    update(engine, EPISODES)


def test_d11_a_mini_batch_of_void_rows_is_no_update_and_no_fault(engine: Any) -> None:
    """Would catch 0 / 0: verl's loss of such a mini-batch is NaN, and one outage would stop the run."""
    before = weights_of(engine)
    metrics = update(engine, [VOID, VOID])
    assert metrics["max_skipped_in_a_row"] == [0.0]
    assert metrics["grad_norm"] == 0.0
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(engine).items())


def test_log_probs_of_void_rows_alone_are_zero(engine: Any) -> None:
    """A micro-batch of void rows alone was a crash: verl's log-probs stack over positions, and there were none."""
    with engine.eval_mode():
        output = engine.infer_batch(batch_of([*EPISODES[:2], VOID, VOID]))["model_output"]
    for values in (output["log_probs"], output["entropy"]):
        assert not values.unbind()[2].any()
        assert values.unbind()[0].any()


def values_of(critic: Any, episodes: list[Episode]) -> list[torch.Tensor]:
    with critic.eval_mode():
        output = critic.infer_batch(batch_of(episodes))["model_output"]["values"]
    return list(output.unbind())


def test_critic_values_equal_a_plain_forward_pass(critic: Any) -> None:
    """Would catch values of the wrong position: the value of a policy token is that of what stands before it."""
    module = critic.module
    for episode, values in zip(EPISODES, values_of(critic, EPISODES), strict=True):
        ids = torch.tensor([episode.prompt + episode.response])
        plain = module.score(module.model(input_ids=ids)[0]).squeeze()
        expected = torch.zeros(ids.shape[1])
        for place, bit in enumerate(episode.mask):
            if bit:
                expected[len(episode.prompt) + place - 1] = plain[len(episode.prompt) + place - 1]
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-4)


def test_critic_starts_equal_and_learns_returns(critic: Any, model_path: Path) -> None:
    """Would catch a value head that differs from start to start, and a critic whose loss reaches no weight."""
    from functools import partial

    from verl.workers.config import FSDPCriticConfig
    from verl.workers.utils.losses import value_loss

    from search_rl.training.cpu_engine import CpuCritic

    twin = make_engine(CpuCritic, model_path, model_type="value_model", learning_rate=1e-4)
    assert torch.equal(twin.module.score.weight, critic.module.score.weight)
    data = batch_of(EPISODES)
    data["values"] = data["advantages"] * 0.0
    data["returns"] = data["advantages"]
    loss = partial(value_loss, config=FSDPCriticConfig(strategy="fsdp2", use_dynamic_bsz=True))
    losses = []
    for _ in range(3):
        with twin.train_mode():
            losses.append(sum(twin.train_batch(data.clone(), loss)["loss"]))
    assert losses[-1] < 0.9 * losses[0]


def test_adapters_reach_the_rollout_engine_merged(adapted: Any, engine: Any) -> None:
    """Would catch a sync that sends the weights without the adapters, or under PEFT's names."""
    names = {name for name, _ in engine.get_per_tensor_param()[0]}
    before, config = adapted.get_per_tensor_param()
    before = dict(before)
    assert (set(before), config) == (names, None)
    update(adapted, EPISODES)
    update(adapted, EPISODES)
    after = dict(adapted.get_per_tensor_param()[0])
    moved = {name for name in names if not torch.equal(before[name], after[name])}
    assert moved == {name for name in names if "_proj." in name}
    from peft import PeftModel

    assert isinstance(adapted.module, PeftModel)
    layer = adapted.module.base_model.model.model.layers[0].self_attn.q_proj
    torch.testing.assert_close(
        after["model.layers.0.self_attn.q_proj.weight"], layer.weight + layer.get_delta_weight("default")
    )


def test_reference_is_the_policy_without_its_adapters(adapted: Any, engine: Any, model_path: Path) -> None:
    """Would catch a KL to the trained policy itself."""
    from search_rl.training.cpu_engine import CpuEngine

    update(adapted, EPISODES)
    plain = make_engine(CpuEngine, model_path)
    log_probs = []
    for each, context in ((adapted, adapted.disable_adapter()), (plain, torch.no_grad())):
        with each.eval_mode(), context:
            log_probs.append(each.infer_batch(batch_of(EPISODES))["model_output"]["log_probs"].values())
    torch.testing.assert_close(*log_probs, atol=1e-5, rtol=1e-5)


def test_export_of_adapters_is_a_plain_checkpoint(adapted: Any, tmp_path: Path) -> None:
    """Would catch an export under PEFT's names, which transformers fills with random weights."""
    from transformers import AutoModelForCausalLM

    adapted.save_checkpoint(str(tmp_path))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface", dtype=torch.bfloat16).state_dict()
    for name, weight in adapted.get_per_tensor_param()[0]:
        torch.testing.assert_close(exported[name], weight.bfloat16(), msg=name)
