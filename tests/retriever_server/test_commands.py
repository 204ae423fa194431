"""`search-rl index` and `search-rl serve` at the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from retriever_server.errors import IndexFolderError
from search_rl.cli import main
from search_rl.cli.index import app
from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.conftest import write_corpus


def test_info_prints_the_manifest(planets_folder: Path) -> None:
    """Would catch output that a program cannot read."""
    result = CliRunner().invoke(app, ["info", str(planets_folder)])
    assert result.exit_code == 0
    assert orjson.loads(result.stdout) == orjson.loads((planets_folder / "manifest.json").read_bytes())


def test_info_of_another_folder_is_told(tmp_path: Path) -> None:
    """Would catch an error that main.py cannot turn into one line."""
    result = CliRunner().invoke(app, ["info", str(tmp_path)])
    assert isinstance(result.exception, IndexFolderError)


def test_the_modules_import_nothing_heavy() -> None:
    """Would catch a `--help` that loads torch."""
    heavy = "{'torch', 'faiss', 'fastapi', 'numba'}"
    check = f"import sys, search_rl.cli.index, search_rl.cli.serve; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_bm25_is_built_and_searched_without_a_model(tmp_path: Path) -> None:
    """Would catch options that do not reach the builder, or a default retriever that is searched silently instead."""
    corpus, out = write_corpus(tmp_path / "corpus.jsonl", PLANETS), tmp_path / "index"
    built = CliRunner().invoke(app, ["build", "--corpus", str(corpus), "--out", str(out), "--retriever", "bm25"])
    assert (built.exit_code, built.stdout) == (0, f"{out}: 6 passages, BM25\n")
    assert "6 of 6 (100 %)" in built.stderr
    searched = CliRunner().invoke(app, ["search", str(out), "moons called Phobos", "--retriever", "bm25"])
    assert searched.stdout.startswith("1. ") and "[mars] Mars" in searched.stdout
    refused = CliRunner().invoke(app, ["search", str(out), "Phobos"])
    assert isinstance(refused.exception, IndexFolderError)


def test_an_unknown_retriever_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    """Would catch a mistyped name that is served as another."""
    result = CliRunner().invoke(app, ["search", str(tmp_path), "Phobos", "--retriever", "bm52"])
    assert result.exit_code == 2 and "hybrid" in result.stderr


def test_serve_reads_the_token_before_anything_else(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch a service that is open to all because its option got lost, or ten seconds before the bad news."""
    arguments = ["serve", "--index", str(planets_folder), "--port", "0", "--cache", "0", "--log-json"]
    result = CliRunner().invoke(main.app, [*arguments, "--token-file", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert result.stderr.startswith("search-rl: token file") and result.stderr.count("\n") == 1


@pytest.mark.slow
def test_build_then_search_finds_the_passage(tmp_path: Path) -> None:
    """Would catch options that do not reach the builder."""
    corpus, out = write_corpus(tmp_path / "corpus.jsonl", PLANETS), tmp_path / "index"
    built = CliRunner().invoke(app, ["build", "--corpus", str(corpus), "--out", str(out), "--batch-size", "2"])
    assert built.exit_code == 0
    assert "6 passages, 384 dimensions" in built.stdout
    assert "6 of 6 (100 %)" in built.stderr
    searched = CliRunner().invoke(app, ["search", str(out), "Phobos", "--top-k", "1"])
    assert searched.stdout.startswith("1. ") and "[mars] Mars" in searched.stdout
