"""What orchestration costs: that the measurement measures whole episodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from search_rl.cli.main import app
from search_rl.errors import DataError
from search_rl.evaluation.orchestration_bench import engine_seconds_per_question, run_orchestration
from tests.search_rl.conftest import ByteCodec


def test_every_episode_searches_and_is_right(codec: ByteCodec) -> None:
    """Episodes that end at once, malformed, and are praised as fast."""
    report = asyncio.run(run_orchestration(codec, num_episodes=20))
    assert (report.num_episodes, report.num_right) == (20, 20)
    assert report.cpu_seconds > 0 and report.figures_cpu_seconds > 0
    assert report.file_bytes > 20 * 1000
    assert str(report).startswith("20 episodes, ")


def summary(folder: Path, **cost: float) -> Path:
    """A result that cost so much."""
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({"cost": cost}))
    return folder


def test_the_share_of_the_engines_time(tmp_path: Path) -> None:
    """A share of all seconds of a result in place of those a question."""
    folder = summary(tmp_path / "result", engine_seconds=30.0, num_questions=300)
    assert engine_seconds_per_question(folder) == pytest.approx(0.1)
    with pytest.raises(DataError, match="tells of no engine"):
        engine_seconds_per_question(summary(folder, engine_seconds=0.0, num_questions=300))
    with pytest.raises(DataError, match="holds no finished evaluation"):
        engine_seconds_per_question(tmp_path)


def test_the_command_checks_the_result_first(tmp_path: Path) -> None:
    """A minute of measuring before a mistyped folder is told."""
    arguments = ["bench", "orchestration", "--model", str(tmp_path), "--result", str(tmp_path / "none")]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
    assert "holds no finished evaluation" in result.output
