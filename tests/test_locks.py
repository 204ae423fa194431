"""The lock files against pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)

# What verl 0.9.1's own `vllm` extra asks for.
VERL_PINS = {"torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0", "torchvision": "0.26.0"}
KEPT_OUT_ON_CPU = {"torchvision", "torchaudio", "torchcodec", "triton", "llama-cpp-python", "llm"}


def pins(kind: str) -> dict[str, str]:
    text = (ROOT / "scripts" / f"{kind}.lock").read_text()
    return {name.lower(): version for name, version in PIN.findall(text)}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_every_line_of_a_lock_pins_or_is_a_hash(kind: str) -> None:
    """Catches an option, an address or a range that slipped into a lock and makes installs differ."""
    lines = (ROOT / "scripts" / f"{kind}.lock").read_text().splitlines()
    assert [line for line in lines if not PIN.match(line) and not line.startswith("    --hash=sha256:")] == []


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_lock_covers_the_project(kind: str) -> None:
    """Catches a dependency added to pyproject.toml without running scripts/lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        re.split(r"[\[<>=~! ;]", line, maxsplit=1)[0].lower()
        for line in [*project["dependencies"], *extras[kind], *extras["dev"]]
    }
    assert wanted - set(pins(kind)) == set()


def test_the_cpu_lock_has_the_cpu_build_and_leaves_out_what_breaks_it() -> None:
    """Catches a CUDA torch of several GB, and the torchvision that does not fit the CPU build."""
    assert pins("cpu")["torch"] == "2.13.0+cpu"
    assert set(pins("cpu")) & KEPT_OUT_ON_CPU == set()
    assert [name for name in pins("cpu") if name.startswith("nvidia")] == []


def test_the_gpu_lock_follows_verl() -> None:
    """Catches a GPU set that drifts from the versions verl is released with."""
    found = pins("gpu")
    assert {name: found[name] for name in VERL_PINS} == VERL_PINS
    assert (found["verl"], "faiss-gpu" in found, "faiss-cpu" in found) == ("0.9.1", True, False)


@pytest.mark.slow
def test_the_gpu_requirements_still_resolve_to_the_lock() -> None:
    """Catches GPU requirements that conflict. Without a network it says that it could not look."""
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "pyproject.toml",
        "--extra",
        "gpu",
        "--extra",
        "dev",
    ]
    command += ["--universal", "--python-version", "3.11", "--no-header", "--no-annotate", "--quiet"]
    command += ["--constraints", "scripts/gpu.lock"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if result.returncode == 0:
        resolved = {name.lower(): version for name, version in PIN.findall(result.stdout)}
        assert resolved == pins("gpu")
    else:
        print(f"could not look (no package index): {result.stderr}")
        assert "No solution found" not in result.stderr
