"""`search-rl eval` from the command line to the files, over real HTTP; and what it says to bad input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from search_rl.cli.main import app
from search_rl.evaluation.assemble import balanced
from search_rl.evaluation.result_folder import load_evaluation
from search_rl.types import Question

pytestmark = pytest.mark.slow

ROWS = [
    {"id": "1", "question": "capital of France?", "golden_answers": ["Paris"], "kind": "one_hop"},
    {"id": "2", "question": "capital of Japan?", "golden_answers": ["Tokyo"], "kind": "one_hop"},
    {"id": "3", "question": "largest city of France?", "golden_answers": ["paris"], "kind": "two_hop"},
]
NOWHERE = "http://127.0.0.1:9"

Eval = Callable[..., Result]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Three questions, two of which Paris answers."""
    path = tmp_path / "demo.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def run_eval(tokenizer_folder: Path, questions: Path, service: str, tmp_path: Path) -> Eval:
    """Run the command with good options, on top of which come the given ones; None takes one away."""

    def run(*flags: str, **changes: str | None) -> Result:
        options: dict[str, str | None] = {
            "model": str(tokenizer_folder),
            "endpoint": service,
            "retriever": service,
            "questions": str(questions),
            "out": str(tmp_path / "out"),
            **changes,
        }
        given = [part for name, value in options.items() if value for part in (f"--{name}", value)]
        return CliRunner().invoke(app, ["eval", *given, *flags])

    return run


def test_evaluation_from_end_to_end(run_eval: Eval, tmp_path: Path) -> None:
    """Figures, files or exit code that do not agree with what the served model answered."""
    result = run_eval()
    assert result.exit_code == 0, result.output
    assert "exact match 0.667 [0.208, 0.939], 3 questions" in result.output
    assert "evaluated 3 of 3 (100 %), exact match 0.667" in result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["is_valid"] is True
    assert summary["kinds"]["all"]["searches_per_question"] == 1.0
    assert summary["kinds"]["two_hop"]["exact_match"]["mean"] == 1.0
    evaluation = load_evaluation(tmp_path / "out")
    assert [rollout.trajectory.answer for rollout in evaluation.rollouts] == ["Paris"] * 3
    assert evaluation.seconds == summary["seconds"]


def test_resume_goes_on_and_refuses_to_mix(run_eval: Eval, tmp_path: Path) -> None:
    """A result lost to a second run into its folder, or episodes of two settings in one result."""
    assert run_eval("--limit", "1").exit_code == 0
    again = run_eval()
    assert again.exit_code == 2
    assert "--resume" in again.output
    mixed = run_eval("--resume", "--top-k", "2")
    assert mixed.exit_code == 2
    assert "its top_k is 3, now it is 2" in mixed.output
    assert run_eval("--resume").exit_code == 0
    assert len((tmp_path / "out" / "episodes.jsonl").read_text().splitlines()) == 3


def test_seconds_are_those_of_all_runs(run_eval: Eval, tmp_path: Path) -> None:
    """A result that took an hour, was killed in its last second and resumed, reported as one of a second."""
    assert run_eval().exit_code == 0
    seconds = json.loads((tmp_path / "out" / "summary.json").read_text())["seconds"]
    assert run_eval("--resume").exit_code == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["seconds"] == seconds > 0


def test_a_refused_resume_loses_no_result(run_eval: Eval, service: str, tmp_path: Path) -> None:
    """A finished result that counts as unfinished because somebody resumed it against another index."""
    assert run_eval().exit_code == 0
    stored = json.loads((tmp_path / "out" / "protocol.json").read_text())
    assert stored["rules"]["limits"]["top_k"] == 3
    assert stored["rules"]["datasets"]["demo"]["num_questions"] == 3
    stored["rules"]["retriever"]["probes_sha256"] = "another"
    (tmp_path / "out" / "protocol.json").write_text(json.dumps(stored))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    refused = run_eval("--resume")
    assert refused.exit_code == 2
    assert "cannot resume" in refused.output and "retriever.probes_sha256: another against " in refused.output
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_sampled_evaluation_says_so(run_eval: Eval, tmp_path: Path) -> None:
    """Samples reported as greedy, a seed that is not heard, or a resume that mixes the two."""
    assert run_eval("--temperature", "0.7", "--seed", "3").exit_code == 0
    protocol = json.loads((tmp_path / "out" / "protocol.json").read_text())
    rules, budgets = protocol["rules"], protocol["circumstances"]["budgets"]
    assert budgets.startswith("default"), "the preset of the budgets stands in every report"
    assert budgets in (tmp_path / "out" / "report.html").read_text()
    assert (rules["sampling"]["temperature"], rules["sampling"]["seed"]) == (0.7, 3)
    assert "its sampling is {'temperature': 0.7" in run_eval("--resume").output
    assert run_eval("--seed", "3").exit_code == 2
    assert "is no number to sample at" in run_eval("--temperature", "inf").output


def test_a_profile_scores_the_evaluation(run_eval: Eval, questions: Path, tmp_path: Path) -> None:
    """A profile that is named and does not score, or that scores the summary and not the progress or the episodes."""
    row = {"id": "1", "question": "capital of France?", "golden_answers": ["Pa-ris"]}
    questions.write_text(json.dumps(row) + "\n")
    out = tmp_path / "out"
    result = run_eval(profile="triviaqa")
    assert result.exit_code == 0, result.output
    assert "exact match 0.000 [0.000, 0.793], 1 questions, profile triviaqa" in result.output
    assert "evaluated 1 of 1 (100 %), exact match 0.000" in result.output
    assert json.loads((out / "settings.json").read_text())["profile"] == "triviaqa"
    assert json.loads((out / "summary.json").read_text())["profile"] == "triviaqa"
    evaluation = load_evaluation(out)
    assert evaluation.profile.name == "triviaqa"
    assert [rollout.reward.total for rollout in evaluation.rollouts] == [0.0]
    by_default = run_eval(out=str(tmp_path / "default"))
    assert "exact match 1.000 [0.207, 1.000], 1 questions, profile search_r1" in by_default.output
    assert json.loads((tmp_path / "default" / "settings.json").read_text())["profile"] == "search_r1"
    mixed = run_eval("--resume")
    assert mixed.exit_code == 2
    assert "its profile is 'triviaqa', now it is 'search_r1'" in mixed.output


def test_one_option_switches_the_protocol(run_eval: Eval, tmp_path: Path) -> None:
    """A protocol that only training honours, or that a report does not name."""
    result = run_eval(protocol="tool_call", prompt="short")
    assert result.exit_code == 0, result.output
    assert "exact match 0.667" in result.output
    assert "protocol tool_call, prompt short, budgets default" in result.output
    agent = json.loads((tmp_path / "out" / "summary.json").read_text())["agent"]
    assert agent["protocol"] == "tool_call/plain"
    assert agent["budgets"] == "default"
    evaluation = load_evaluation(tmp_path / "out")
    assert [rollout.trajectory.num_searches for rollout in evaluation.rollouts] == [1, 1, 1]
    assert "<tool_call>" in evaluation.rollouts[0].trajectory.turns[0].text
    mixed = run_eval("--resume", prompt="short")
    assert mixed.exit_code == 2
    assert "its protocol is 'tool_call', now it is 'tags'" in mixed.output


def test_ask_speaks_the_protocol_too(tokenizer_folder: Path, service: str) -> None:
    """An `ask` that shows another agent than the one that is evaluated."""
    options = ["--model", str(tokenizer_folder), "--endpoint", service, "--retriever", service, "--answer", "Paris"]
    result = CliRunner().invoke(app, ["ask", "capital of France?", *options, "--protocol", "tool_call"])
    assert result.exit_code == 0, result.output
    assert "<tool_call>" in result.output
    assert "1 searches" in result.output
    assert "malformed" not in result.output


def test_an_evaluation_from_before_profiles_goes_on(run_eval: Eval, tmp_path: Path) -> None:
    """Results on disk that no longer resume or load because their files name no profile."""
    assert run_eval().exit_code == 0
    for name in ("settings.json", "summary.json"):
        path = tmp_path / "out" / name
        stored = json.loads(path.read_text())
        for key in ("profile", "protocol", "max_queries", "keep_reasoning", "budgets", "agent"):
            stored.pop(key, None)
        path.write_text(json.dumps(stored))
    assert load_evaluation(tmp_path / "out").profile.name == "search_r1"
    other = run_eval("--resume", profile="squad")
    assert "its profile is 'search_r1', now it is 'squad'" in other.output
    assert run_eval("--resume").exit_code == 0


BAD_OPTIONS = {
    "no model": ({"model": None}, "no model: give --model"),
    "no questions": ({"questions": None}, "no questions: give --questions"),
    "no question file": ({"questions": "missing.parquet"}, "no question file at missing.parquet"),
    "no output": ({"out": None}, "no output folder: give --out"),
    "no retriever": ({"retriever": NOWHERE}, f"no retriever at {NOWHERE}: start one with search-rl serve"),
    "no server": ({"endpoint": NOWHERE}, f"no answer from {NOWHERE}/v1/completions"),
    "no tokenizer": ({"model": "/nowhere"}, "/nowhere"),
    "no checkpoint": ({"model": "/nowhere", "endpoint": None}, "/nowhere is not a folder"),
    "unknown prompt": ({"prompt": "shrot"}, "did you mean 'short'?"),
    "unknown protocol": ({"protocol": "tags_"}, "did you mean 'tags'?"),
    "unknown profile": ({"profile": "squda"}, "did you mean 'squad'?"),
    "no file to override": ({"set": "agent.prompt=short"}, "needs --config"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options(run_eval: Eval, changes: dict[str, str | None], message: str) -> None:
    """A traceback, exit code 0 or several lines where one would do."""
    result = run_eval(**changes)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_bad_row_is_named_and_can_be_skipped(run_eval: Eval, questions: Path) -> None:
    """A bad row that stops everything although the user said to go on."""
    with questions.open("a") as file:
        file.write(json.dumps({"id": "4", "golden_answers": ["x"]}) + "\n")
    result = run_eval()
    assert result.exit_code == 2
    assert "row 4: question is missing" in result.output
    assert "3 questions" in run_eval("--skip-bad").output


def test_one_question_in_two_files(run_eval: Eval, questions: Path) -> None:
    """A question counted twice."""
    result = run_eval("--questions", str(questions))
    assert result.exit_code == 2
    assert "is in an earlier file too" in result.output


def test_limit_keeps_all_kinds_whatever_their_order() -> None:
    """A quick run on one kind alone: evenly spaced rows of a file whose kinds take turns were all one-hop."""
    kinds = ["one_hop", "two_hop", "comparison"]
    in_turn = tuple(Question(str(index), "?", ("x",), "demo", kinds[index % 3]) for index in range(90))
    in_blocks = tuple(Question(str(index), "?", ("x",), "demo", kinds[index // 30]) for index in range(90))
    for questions in (in_turn, in_blocks):
        chosen = balanced(questions, 30)
        assert Counter(question.kind for question in chosen) == dict.fromkeys(kinds, 10)
        assert [int(question.id) for question in chosen] == sorted(int(question.id) for question in chosen)
        assert balanced(questions, 200) == balanced(questions, None) == questions


def test_ask_shows_the_episode(tokenizer_folder: Path, service: str) -> None:
    """An episode that `ask` runs otherwise than `eval` does, or an answer that is not shown."""
    options = ["--model", str(tokenizer_folder), "--endpoint", service, "--retriever", service]
    result = CliRunner().invoke(app, ["ask", "capital of France?", *options])
    assert result.exit_code == 0, result.output
    assert "0.500  Paris  Paris is the capital of France." in result.output
    assert "Answer  Paris" in result.output
    failed = CliRunner().invoke(app, ["ask", "capital of France?", *options[:-1], NOWHERE])
    assert failed.exit_code == 2
