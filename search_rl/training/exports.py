"""Exports in the type that their config.json names; verl writes the trainer's fp32 masters, twice the size."""

from __future__ import annotations

import json
from pathlib import Path


def cast_weights(folder: Path) -> None:
    """Rewrite the safetensors of a Hugging Face folder in the dtype of its config.json, one file at a time.

    These are the numbers that the rollout engine served: it rounds the masters in the same way. The trainer's own
    state keeps fp32. A folder that another host wrote, and that this one cannot see, is left as it is.
    """
    config = folder / "config.json"
    if not config.exists():
        return
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    dtype = getattr(torch, json.loads(config.read_text()).get("dtype") or "float32")
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        if all(not tensor.is_floating_point() or tensor.dtype == dtype for tensor in tensors.values()):
            continue
        cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        staging = path.with_suffix(".new")
        save_file(cast, staging, metadata)
        staging.replace(path)
