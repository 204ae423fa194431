"""`search-rl eval --system`: several systems in one table, a stored file as one, money, and a server in trouble."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from search_rl.cli.main import app

pytestmark = pytest.mark.slow

NAMES = ["agent", "direct", "cot", "rag", "ircot", "oracle", "random", "empty"]
PASSAGE = {"id": "Paris", "title": "Paris", "text": "Paris is the capital of France."}
OTHER = {"id": "Lyon", "title": "Lyon", "text": "Lyon is a city."}

Eval = Callable[..., Result]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run_eval(tokenizer_folder: Path, service: str, tmp_path: Path) -> Eval:
    """Run the command on two questions with good options, on top of which come the given ones."""
    questions: list[dict[str, Any]] = [
        {"id": "1", "question": "capital of France?", "golden_answers": ["Paris"]},
        {"id": "2", "question": "largest city of France?", "golden_answers": ["paris"]},
    ]
    for row in questions:
        row["extra_info"] = {"evidence_ids": ["Paris"]}
    files = {
        "questions": write_rows(tmp_path / "demo.jsonl", questions),
        "corpus": write_rows(tmp_path / "corpus.jsonl", [PASSAGE, OTHER]),
    }

    def run(*flags: str, **changes: str | None) -> Result:
        options: dict[str, str | None] = {
            "model": str(tokenizer_folder),
            "endpoint": service,
            "retriever": service,
            "out": str(tmp_path / "out"),
            **{name: str(path) for name, path in files.items()},
            **changes,
        }
        given = [part for name, value in options.items() if value for part in (f"--{name}", value)]
        return CliRunner().invoke(app, ["eval", *given, *flags])

    return run


def test_a_suite_is_one_table(run_eval: Eval, tmp_path: Path) -> None:
    """Systems that share a result, rows of the wrong system, or a suite that cannot go on."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nsearch_per_thousand: 1000\nmodels: {tokenizer: {}}\n")
    result = run_eval(systems="all", prices=str(prices))
    assert result.exit_code == 0, result.output
    rows = {row["system"]: row for row in json.loads((tmp_path / "out" / "suite.json").read_text())}
    assert list(rows) == NAMES
    # The served model answers Paris once it has read that word, and searches before.
    assert {name: row["exact_match"] for name, row in rows.items()} == {
        "agent": 1.0, "direct": 0.0, "cot": 0.0, "rag": 1.0, "ircot": 1.0, "oracle": 1.0, "random": 1.0, "empty": 0.0,
    }  # fmt: skip
    assert {name: row["searches_per_question"] for name, row in rows.items()} == {
        "agent": 1.0, "direct": 0.0, "cot": 0.0, "rag": 1.0, "ircot": 1.0, "oracle": 0.0, "random": 1.0, "empty": 4.0,
    }  # fmt: skip
    assert [rows[name]["evidence_found_share"] for name in ("agent", "direct", "oracle")] == [1.0, 0.0, 1.0]
    assert rows["rag"]["money_per_question"] == rows["rag"]["money_per_right_answer"] == 1.0
    assert {row["budgets"] for row in rows.values()} == {"default"}
    assert "budgets: default" in [line.strip() for line in result.output.splitlines()]
    assert "EUR/q EUR/right" in " ".join(result.output.split())
    assert "direct: exact match 0.000 " in result.output
    table = [line.split() for line in result.output.splitlines() if line.split()[:1] == ["ircot"]]
    assert table[0][:6] == ["ircot", "1.000", "[.34,", "1.00]", "1.000", "1.000"]
    assert table[0][-2:] == ["1", "1"], "money a question and a right answer"
    ceiling = json.loads((tmp_path / "out" / "retriever.json").read_text())["ceiling"]["all"]
    assert ceiling["evidence_recall_at"]["1"]["mean"] == ceiling["answer_hit_at"]["100"]["mean"] == 1.0
    again = run_eval("--resume", systems="all")
    assert again.exit_code == 0, again.output
    assert all(len(_lines(tmp_path / "out" / name / "episodes.jsonl")) == 2 for name in NAMES)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_system_is_not_resumed_as_another(run_eval: Eval, tmp_path: Path) -> None:
    """Episodes of two systems in one result."""
    assert run_eval(system="direct").exit_code == 0
    mixed = run_eval("--resume", system="cot")
    assert mixed.exit_code == 2
    assert "its system is 'direct', now it is 'cot'" in mixed.output
    assert run_eval("--resume", system="direct").exit_code == 0
    suite = run_eval(systems="direct,cot")
    assert suite.exit_code == 2 and "holds the result of one system" in suite.output
    assert len(_lines(tmp_path / "out" / "episodes.jsonl")) == 2


def test_stored_rollouts_are_scored_like_a_system(
    run_eval: Eval, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stored file scored by other rules than the run that made it, questions that it lacks left out, or answers to
    others that nobody hears of."""
    assert run_eval("--limit", "1").exit_code == 0
    stored = str(tmp_path / "out" / "episodes.jsonl")
    alone = run_eval(rollouts=stored, questions=None, out=str(tmp_path / "alone"), endpoint=None, model=None)
    assert alone.exit_code == 0, alone.output
    assert "exact match 1.000 [0.207, 1.000], 1 questions" in alone.output
    lacking = run_eval(rollouts=stored, out=str(tmp_path / "lacking"), endpoint=None, model=None)
    assert lacking.exit_code == 1
    assert "\nNOT VALID: 1 of 2 questions failed (over 0.1%) and count as wrong" in lacking.output
    assert f"failed: 4:demo/2 (engine_failed) {stored} has no rollout of question 4:demo/2" in lacking.output
    other = write_rows(tmp_path / "other.jsonl", [{"id": "1", "question": "x?", "golden_answers": ["x"]}])
    caplog.clear()
    run_eval(rollouts=stored, questions=str(other), out=str(tmp_path / "other"), endpoint=None, model=None)
    assert "answers 1 questions that are not asked, such as 4:demo/1: left out" in caplog.text
    twice = tmp_path / "twice.jsonl"
    twice.write_text(Path(stored).read_text() * 2)
    refused = run_eval(rollouts=str(twice), out=str(tmp_path / "twice"))
    assert refused.exit_code == 2
    assert "holds more than one rollout of question 4:demo/1" in refused.output


def test_a_question_that_the_server_refuses(run_eval: Eval, tmp_path: Path) -> None:
    """An evaluation that ends with one bad request, a question that is dropped from the mean, or a report that begins
    with the figure."""
    questions = [
        {"id": "1", "question": "capital of France?", "golden_answers": ["Paris"]},
        {"id": "2", "question": "Refuse this?", "golden_answers": ["Paris"]},
    ]
    result = run_eval(questions=str(write_rows(tmp_path / "some.jsonl", questions)), system="agent")
    assert result.exit_code == 1
    first = "NOT VALID: 1 of 2 questions failed (over 0.1%) and count as wrong: exact match 0.500 "
    assert f"\n{first}" in result.output
    assert "failed: 4:some/2 (engine_failed) " in result.output and "answered 400" in result.output
    out = tmp_path / "out"
    assert (out / "report.md").read_text().splitlines()[0].startswith(f"# {first}")
    (failed,) = _lines(out / "failed.jsonl")
    assert json.loads(failed)["key"] == "4:some/2"
    assert json.loads((out / "summary.json").read_text())["is_valid"] is False
    again = run_eval("--resume", questions=str(tmp_path / "some.jsonl"), system="agent")
    assert again.exit_code == 1
    asked = [json.loads(line)["question"]["id"] for line in _lines(out / "episodes.jsonl")]
    assert sorted(asked) == ["1", "2", "2"], "only the failed question is asked again"


BAD_OPTIONS = {
    "unknown system": ({"system": "direkt"}, "unknown system 'direkt': did you mean 'direct'?"),
    "oracle without a corpus": ({"system": "oracle", "corpus": None}, "system oracle takes passages from the corpus"),
    "no corpus file": ({"system": "random", "corpus": "/nowhere.jsonl"}, "/nowhere.jsonl"),
    "no price table": ({"prices": "/nowhere.yaml"}, "price table /nowhere.yaml cannot be read"),
    "unknown api": ({"api": "tokns"}, "unknown api 'tokns': did you mean 'tokens'?"),
    "api of no endpoint": ({"api": "chat", "endpoint": None}, "--api chat needs --endpoint"),
    "rollouts and a system": ({"rollouts": "x.jsonl", "system": "rag"}, "takes the place of --system rag"),
    "no rollouts": ({"rollouts": "/nowhere.jsonl"}, "no rollout file at /nowhere.jsonl"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options(run_eval: Eval, changes: dict[str, str | None], message: str, tmp_path: Path) -> None:
    """A traceback, several lines where one would do, or a folder that is claimed by a run that never was."""
    result = run_eval(**changes)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "settings.json").exists()
