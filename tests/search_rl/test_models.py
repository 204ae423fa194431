"""Exporting small models, and telling a checkpoint from what is none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search_rl import models
from search_rl.errors import ModelError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert models.export_tiny(folder) is True
    return folder


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny)


def test_tokenizer_is_the_one_that_smollm2_was_trained_with(tokenizer: Any) -> None:
    """Catches the GGUF conversion's slips: digits run together with spaces, start token as eos, no pad."""
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a   57")) == ["a", "ĠĠĠ", "5", "7"]
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False).endswith(
        "<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.mark.parametrize("text", ["GDP of France: 1,234 .", "▁ and <0x41>", "São Tomé é 漢字", "tabs\tand\n\n lines "])
def test_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    """Catches decoders that rewrite text (spaces before full stops, byte names, the low line of others)."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_config_names_the_same_end_as_the_tokenizer(tiny: Path) -> None:
    """Catches an engine that stops at another token than the trainer masks."""
    for name in ("config.json", "generation_config.json"):
        values = json.loads((tiny / name).read_text())
        assert (values["eos_token_id"], values["pad_token_id"], values["bos_token_id"]) == (2, 0, 1)


def test_the_seed_decides_the_weights(tiny: Path, tmp_path: Path) -> None:
    """Catches a seed that is not used, and one that leaks from the global generator."""
    from safetensors.torch import load_file

    def weights(folder: Path) -> Any:
        return load_file(folder / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]

    models.export_tiny(tmp_path / "same")
    models.export_tiny(tmp_path / "other", seed=1)
    assert weights(tmp_path / "same").equal(weights(tiny))
    assert not weights(tmp_path / "other").equal(weights(tiny))


def test_a_second_export_writes_nothing(tiny: Path) -> None:
    """Catches an export that rewrites a checkpoint which a running job has open."""
    before = (tiny / "model.safetensors").stat().st_mtime_ns
    assert models.export_tiny(tiny) is False
    assert (tiny / "model.safetensors").stat().st_mtime_ns == before


def test_an_export_never_overwrites_something_else(tiny: Path) -> None:
    """Catches a trained checkpoint being replaced by fresh weights."""
    with pytest.raises(ModelError, match="holds something else"):
        models.export_tiny(tiny, seed=2)


def test_an_export_leaves_only_the_checkpoint(tiny: Path) -> None:
    """Catches staging folders left beside the result."""
    assert os.listdir(tiny.parent) == ["tiny"]


def test_a_checkpoint_is_accepted(tiny: Path) -> None:
    """Catches a check that refuses what transformers loads."""
    models.check_checkpoint(tiny)


def _cut_short(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1_000_000)


def _lose_a_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "is not a folder"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
    "broken config": (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
    "another config": (lambda folder: (folder / "config.json").write_text("{}"), "names no model_type"),
    "a list as config": (lambda folder: (folder / "config.json").write_text("[]"), "holds a list"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "weights cut short": (_cut_short, "cut short or damaged"),
    "a lost shard": (_lose_a_shard, "lacks model-00002-of-00002.safetensors"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_checkpoint_is_told_in_one_line(tiny: Path, tmp_path: Path, damage: str) -> None:
    """Catches a broken folder that would fail minutes later, deep inside the engine."""
    harm, message = DAMAGE[damage]
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    harm(folder)
    with pytest.raises(ModelError, match=message) as caught:
        models.check_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_smollm2_gives_its_known_answer_after_the_round_trip(tmp_path: Path) -> None:
    """Catches weights or a template that are lost between the GGUF file and the saved checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "smollm2"
    assert models.export_smollm2_135m(folder) is True
    models.check_checkpoint(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(tensor.numel() for tensor in model.parameters()) == 134_515_008
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": models.KNOWN_QUESTION}], add_generation_prompt=True, return_tensors="pt"
    )
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert output[0, -1].item() == tokenizer.eos_token_id
    assert tokenizer.decode(output[0, prompt["input_ids"].shape[1] : -1]) == models.KNOWN_COMPLETION
