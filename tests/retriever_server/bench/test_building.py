"""`bench build`: a real build in a process of its own, left alone, killed and resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retriever_server.bench.building import Build, BuildRun
from search_rl.cli.main import app

GIB = 1024**3
GOOD = Build(1000, 3 * GIB, BuildRun(10.0, 4 * GIB, False), (BuildRun(2.0, 5 * GIB, True),), True)


def test_faults_are_another_index_and_more_memory_than_allowed() -> None:
    """Would catch a benchmark that never fails: the killed builds' memory counts too."""
    assert (GOOD.room_bytes, GOOD.faults) == (2 * GIB, [])
    assert replace(GOOD, is_equal=None).faults == []
    assert replace(GOOD, is_equal=False).faults == ["what was killed and resumed is another index"]
    larger = replace(GOOD, killed=(BuildRun(2.0, 5 * GIB + GIB // 2, True),))
    assert larger.faults == ["a build held 2.50 GiB beside the index, more than 2 GiB"]


@pytest.mark.slow
@pytest.mark.parametrize("retriever", ["dense", "hybrid"])
def test_command_kills_a_build_resumes_it_and_compares(retriever: str, tmp_path: Path) -> None:
    """Would catch a comparison of nothing, and figures that are not those of the index."""
    options = [
        "--passages",
        "20000",
        "--dimension",
        "64",
        "--retriever",
        retriever,
        "--kills",
        "4",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, ["bench", "build", *options])
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "build.json").read_text())
    assert figures["faults"] == [] and figures["is_equal"] is True
    assert figures["num_passages"] == 20_000
    assert figures["index_bytes"] >= 20_000 * 64 * 4
    assert len(figures["killed"]) == 5 and figures["killed"][3]["is_killed"], "a quarter of 0.6 of a build"
    assert "byte for byte" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["build.json"]


@pytest.mark.slow
def test_build_that_fails_is_told_and_leaves_no_index(tmp_path: Path) -> None:
    """Would catch figures of a build that never was."""
    (tmp_path / "bad.jsonl").write_text("{}\n")
    result = CliRunner().invoke(
        app, ["bench", "build", "--corpus", str(tmp_path / "bad.jsonl"), "--out", str(tmp_path)]
    )
    assert result.exit_code == 2
    assert "the build ended with status 1" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]
