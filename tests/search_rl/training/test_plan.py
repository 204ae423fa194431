"""What a run needs, against sizes that were counted by hand and against the presets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from search_rl.cli.main import app
from search_rl.config import Config, load_config
from search_rl.errors import ConfigError, ModelError
from search_rl.training.plan import GIB, ModelShape, check_memory, device_memory_bytes, plan, read_shape

CONFIGS = Path(__file__).parents[3] / "configs"
QWEN: dict[str, dict[str, Any]] = {  # as published in the config.json of each
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    "3B": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    "7B": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
}
PRESETS = {
    "qwen2.5-1.5b-lora-1x24gb.yaml": "1.5B",
    "qwen2.5-3b-grpo-1x80gb.yaml": "3B",
    "qwen2.5-3b-grpo-8gpu.yaml": "3B",
    "qwen2.5-7b-grpo-8x80gb.yaml": "7B",
}


def shape_of(size: str, folder: Path) -> ModelShape:
    """The shape of a Qwen2.5 whose folder holds its config alone."""
    defaults = {"model_type": "qwen2", "vocab_size": 151936, "num_key_value_heads": 2, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(defaults | QWEN[size]))
    return read_shape(str(folder))


@pytest.mark.parametrize(("size", "billions"), [("1.5B", 1.544), ("3B", 3.086), ("7B", 7.616)])
def test_shape_has_the_published_number_of_parameters(size: str, billions: float, tmp_path: Path) -> None:
    """Tied embeddings counted twice, or a cache of all heads where keys are shared."""
    shape = shape_of(size, tmp_path)
    assert shape.num_parameters / 1e9 == pytest.approx(billions, abs=0.001)
    heads = {"1.5B": 28 * 2, "3B": 36 * 2, "7B": 28 * 4}[size]
    assert shape.cache_bytes_per_token == 2 * 2 * heads * 128


def config_of(name: str, *overrides: str) -> Config:
    return load_config(CONFIGS / name, overrides)


@pytest.mark.parametrize(("name", "size"), PRESETS.items())
def test_presets_fit_the_hardware_that_they_name(name: str, size: str, tmp_path: Path) -> None:
    """A preset that runs out of memory at its first update."""
    config = config_of(name)
    memory_gib = config.hardware.memory_gib
    assert memory_gib is not None
    plan(config, shape_of(size, tmp_path), memory_bytes=int(memory_gib * GIB)).check()


@pytest.mark.parametrize(
    ("name", "size", "memory_gib", "overrides"),
    [
        (
            "qwen2.5-3b-grpo-1x80gb.yaml",
            "3B",
            140,
            ["rollout.gpu_memory_share=0.6", "optimizer.micro_batch_tokens=32768"],
        ),
        ("qwen2.5-7b-grpo-8x80gb.yaml", "7B", 79, ["hardware.nodes=4"]),
    ],
)
def test_larger_hardware_fits_too(name: str, size: str, memory_gib: int, overrides: list[str], tmp_path: Path) -> None:
    """A plan that forgets that nodes share the trainer's state: four of them need less a device than one."""
    config = config_of(name, *overrides)
    made = plan(config, shape_of(size, tmp_path), memory_bytes=memory_gib * GIB)
    made.check()
    if config.hardware.nodes > 1:
        one = plan(config_of(name), shape_of(size, tmp_path), memory_bytes=memory_gib * GIB)
        assert sum(part.num_bytes for part in made.update) < sum(part.num_bytes for part in one.update)


def test_seven_billion_in_full_do_not_fit_one_card(tmp_path: Path) -> None:
    """A run that is let go and dies after minutes of loading; the key to change is named."""
    config = config_of("qwen2.5-7b-grpo-8x80gb.yaml", "hardware.gpus_per_node=1")
    made = plan(config, shape_of("7B", tmp_path), memory_bytes=79 * GIB)
    with pytest.raises(
        ConfigError, match=r"the update needs about 1\d\d.\d GiB a device, which has 79.0: most of it is"
    ):
        made.check()


def test_vllm_share_must_hold_the_weights_and_one_episode(tmp_path: Path) -> None:
    """An engine that finds no room for its cache, told in its own words a minute later."""
    config = config_of("qwen2.5-7b-grpo-8x80gb.yaml", "rollout.gpu_memory_share=0.15")
    with pytest.raises(ConfigError, match=r"0.15 of 79 GiB is 11.8 GiB: vLLM needs 15.5"):
        plan(config, shape_of("7B", tmp_path), memory_bytes=79 * GIB)


def test_trainer_state_by_hand(tmp_path: Path) -> None:
    """Bytes a parameter: 4 of masters, 4 of gradients, 8 of Adam, over eight devices; no gradients in the rollout."""
    shape = shape_of("3B", tmp_path)
    made = plan(config_of("qwen2.5-3b-grpo-8gpu.yaml"), shape, memory_bytes=79 * GIB)
    sizes = {demand.name: demand.num_bytes for demand in made.update}
    assert sizes["fp32 masters"] == sizes["gradients"] == sizes["Adam's moments"] // 2 == shape.num_parameters // 2
    assert sizes["logits"] == 10 * 151936 * 16384
    assert {demand.name for demand in made.rollout} == {
        "fp32 masters",
        "Adam's moments",
        "the reference policy",
        "vLLM's share",
    }
    assert made.episodes_per_step == 512 * 5


def test_steps_an_hour_come_from_a_measured_run(tmp_path: Path) -> None:
    """A rate that is made up, or that forgets that the planned step is larger."""
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"timing_s/step": {seconds}}}\n' for seconds in (90, 30, 36)))
    measured = {
        "rollout": {"prompts_per_step": 8, "samples_per_prompt": 4},
        "algorithm": {"trained_samples": 4},
    }
    (tmp_path / "config.json").write_text(json.dumps(measured))
    shape = ModelShape(134_515_008, 30, 576, 49152, 23040)
    made = plan(config_of("demo.yaml"), shape, measured=tmp_path)
    assert made.steps_per_hour == pytest.approx(3600 / (36 * 64 / 32))
    with pytest.raises(ConfigError, match="trained_samples=4, this config on 2, and an update takes other time"):
        plan(config_of("demo.yaml", "algorithm.trained_samples=2"), shape, measured=tmp_path)
    with pytest.raises(ConfigError, match="no metrics in"):
        plan(config_of("demo.yaml"), shape, measured=tmp_path / "none")


def test_demo_is_planned_near_what_it_was_measured_to_take(tmp_path: Path) -> None:
    """A formula that forgets the dozen processes beside the trainer: 12.7 to 13.3 GiB were measured in whole demos."""
    shape = ModelShape(134_515_008, 30, 576, 49152, 23040)
    made = plan(config_of("demo.yaml"), shape, memory_bytes=24 * GIB)
    assert 13.3 * GIB < made.peak_bytes < 14 * GIB
    assert made.summary == "memory: about 13.4 GiB a device, which has 24.0 GiB"


def test_on_a_cpu_the_machine_is_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop with too little memory that starts all the same, and ends in the middle of an update."""
    config, limit = config_of("demo.yaml"), tmp_path / "memory.max"
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=24 * GIB))
    monkeypatch.setattr("search_rl.training.plan.CGROUP_LIMIT", limit)
    assert device_memory_bytes(config) == 24 * GIB
    for text, num_bytes in (("max\n", 24 * GIB), (f"{16 * GIB}\n", 16 * GIB), (f"{2**60}\n", 24 * GIB)):
        limit.write_text(text)
        assert device_memory_bytes(config) == num_bytes
    assert device_memory_bytes(config_of("demo.yaml", "hardware.memory_gib=8")) == 8 * GIB
    shape_of("7B", tmp_path)
    with pytest.raises(ConfigError, match=r"needs about 1\d\d.\d GiB a device, which has .* hardware.memory_gib"):
        check_memory(config_of("demo.yaml", f"model.path={tmp_path}"))


def test_command_prints_the_table_and_refuses_what_cannot_fit(tmp_path: Path) -> None:
    """Options that do not reach the plan, and a refusal with exit code 0."""
    shape_of("3B", tmp_path)
    arguments = ["plan", str(CONFIGS / "qwen2.5-3b-grpo-8gpu.yaml"), "--set", f"model.path={tmp_path}"]
    fits = CliRunner().invoke(app, [*arguments, "--memory-gib", "79"])
    assert fits.exit_code == 0, fits.output
    assert "2,560 episodes" in fits.output
    refused = CliRunner().invoke(app, [*arguments, "--memory-gib", "30"])
    assert refused.exit_code == 2
    assert "optimizer.micro_batch_tokens" in refused.output


def test_run_that_cannot_fit_is_refused_before_it_starts(tmp_path: Path) -> None:
    """A start that loads for minutes to find that out."""
    shape_of("7B", tmp_path)
    overrides = (f"model.path={tmp_path}", "hardware.gpus_per_node=1")
    with pytest.raises(ConfigError, match="the update needs about"):
        check_memory(config_of("qwen2.5-7b-grpo-8x80gb.yaml", *overrides))
    assert check_memory(config_of("qwen2.5-7b-grpo-8x80gb.yaml", *overrides, "hardware.memory_gib=null")) is None


def test_model_without_a_config_is_named(tmp_path: Path) -> None:
    """A traceback of transformers for a mistyped path."""
    with pytest.raises(ModelError, match=r"no model config in .*; a folder with its config.json is enough"):
        read_shape(str(tmp_path / "none"))
