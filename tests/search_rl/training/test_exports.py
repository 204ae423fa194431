"""Exports of the trainer's masters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from search_rl.training.exports import cast_weights


def _folder(path: Path, dtype: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"dtype": dtype}))
    tensors = {"weight": torch.tensor([1.0, 1.0 + 2**-12, -3.3]), "index": torch.tensor([1, 2])}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_are_rounded_to_the_named_type_and_integers_stay(tmp_path: Path, dtype: str) -> None:
    """Would catch exports of twice the size their config names, and rounding that differs from the sampler's."""
    folder = _folder(tmp_path / "export", dtype)
    masters = load_file(folder / "model.safetensors")
    cast_weights(folder)
    cast = load_file(folder / "model.safetensors")
    assert torch.equal(cast["weight"], masters["weight"].to(getattr(torch, dtype)))
    assert torch.equal(cast["index"], masters["index"])
    assert [path.name for path in folder.glob("*.new")] == []


def test_folder_of_another_host_is_left(tmp_path: Path) -> None:
    """Would catch a run on a cluster without a shared disk that dies after its checkpoint."""
    cast_weights(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
