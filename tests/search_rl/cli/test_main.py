"""The composed command line, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from search_rl import __version__
from search_rl.cli.main import app
from search_rl.errors import SearchRLError

HEAVY = ("torch", "vllm", "verl", "ray", "faiss", "transformers", "pyarrow", "scipy", "matplotlib", "numpy")
NOUNS = ("data", "model", "index", "serve", "sft", "train", "eval", "score", "ask", "doctor")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "search_rl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_loads_nothing_heavy() -> None:
    """Catches an import at the top of a command module that makes --help take seconds."""
    code = f"import sys, search_rl.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_noun_is_on_the_help_page() -> None:
    """Catches a command module that nobody registered."""
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert [noun for noun in NOUNS if f" {noun} " not in output] == []


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_has_help(noun: str) -> None:
    """Catches a command whose options Typer cannot read, which would break only when it is used."""
    assert CliRunner().invoke(app, [noun, "--help"]).exit_code == 0


def test_version() -> None:
    """Catches a version option that no longer ends the program."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{__version__}\n")


def test_an_error_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    """Catches a traceback, or an exit code of 0, where the user should read one line."""
    result = run("index", "info", str(tmp_path / "absent"))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert str(tmp_path / "absent") in result.stderr


def test_debug_shows_where_the_error_was_raised(tmp_path: Path) -> None:
    """Catches a --debug that is read too late to keep the traceback."""
    (tmp_path / "taken").mkdir()
    result = CliRunner().invoke(app, ["--debug", "model", "tiny", "--out", str(tmp_path / "taken")])
    assert isinstance(result.exception, SearchRLError)
    assert "holds something else" in str(result.exception)
