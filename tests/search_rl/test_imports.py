"""The one-way import rule, read from the source of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import retriever_server
import search_rl

ROOT = Path(search_rl.__file__).parents[1]

# A module may import from its own layer and from those with a lower number. A name stands for all below it;
# the longest name that fits counts.
LAYERS = {
    "retriever_server": 0,
    "search_rl": 1,
    "search_rl.errors": 1,
    "search_rl.types": 1,
    "search_rl.answers": 1,
    "search_rl.evidence": 1,
    "search_rl.normalisers": 1,
    "search_rl.profiles": 1,
    "search_rl.search": 1,
    "search_rl.health": 1,
    "search_rl.config": 1,
    "search_rl.presets": 1,
    "search_rl.allocator": 1,
    "search_rl.config_algorithm": 1,
    "search_rl.engines": 2,
    "search_rl.models": 2,
    "search_rl.agent": 2,
    "search_rl.algorithms": 2,
    "search_rl.rewards": 2,
    "search_rl.datasets": 2,
    "search_rl.records": 2,
    "search_rl.codec": 2,
    "search_rl.training": 3,
    "search_rl.evaluation": 3,
    "search_rl.viewer": 3,
    "search_rl.demo": 4,
    "search_rl.cli": 5,
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in (retriever_server, search_rl):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


def imported_by(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def layer_of(module: str) -> int:
    parts = module.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next(LAYERS[prefix] for prefix in prefixes if prefix in LAYERS)


MODULES = dict(modules())


def test_every_module_of_the_top_level_has_a_layer() -> None:
    """Catches a new part of the package that escapes the import rule because nobody gave it a place."""
    tops = {".".join(name.split(".")[:2]) for name in MODULES if name.startswith("search_rl")}
    assert tops - set(LAYERS) == set()


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    """Catches an import upwards (an agent that knows the trainer, a retriever that knows search_rl)."""
    ours = {name for name in imported_by(MODULES[module]) if name.split(".")[0] in ("search_rl", "retriever_server")}
    assert {name for name in ours if layer_of(name) > layer_of(module)} == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("search_rl.")])
def test_of_the_retriever_only_the_contract_is_used_below_the_command_line(module: str) -> None:
    """Catches library code that reaches into the service instead of speaking its contract."""
    inside = {name for name in imported_by(MODULES[module]) if name.startswith("retriever_server")}
    if not module.startswith("search_rl.cli"):
        assert {name for name in inside if not name.startswith("retriever_server.schema")} == set()


@pytest.mark.parametrize("module", MODULES)
def test_only_training_imports_verl_or_ray(module: str) -> None:
    """Catches verl or Ray leaking out of the places that are allowed to know them."""
    if module == "retriever_server.cluster":
        return
    trainer = {name for name in imported_by(MODULES[module]) if name.split(".")[0] in ("verl", "ray", "transfer_queue")}
    assert module.startswith("search_rl.training") or trainer == set()
