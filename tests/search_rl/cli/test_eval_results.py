"""`search-rl eval compare|seeds|audit|report` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from search_rl.cli.main import app
from tests.search_rl.evaluation.told import ask, protocol, told, write

QUESTIONS = [ask(f"nq {number}", "red") for number in range(10)]


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """Nothing right, always the same query."""
    return write(tmp_path / "first", [told(question, "blue", "colour") for question in QUESTIONS])


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """All right, measured with another k."""
    rules = protocol(limits={"top_k": 5})
    return write(tmp_path / "second", [told(question, "red", question.text) for question in QUESTIONS], rules=rules)


def run(*arguments: str | Path) -> Result:
    """The command."""
    return CliRunner().invoke(app, ["eval", *map(str, arguments)], env={"COLUMNS": "160"})


def lines(result: Result) -> list[str]:
    """The output without the spaces around."""
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]


def test_compare_refuses_then_tells(first: Path, second: Path) -> None:
    """Unlike results in one table without a word, or --force that hides what it forced."""
    refused = run("compare", first, second)
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "not measured alike (limits.top_k: 3 against 5): --force" in refused.stderr
    shown = lines(run("compare", first, second, "--force"))
    assert shown[0] == "not alike: limits.top_k: 3 against 5"
    assert shown[1].endswith("second against " + f"{first.parent.name}/first, profile search_r1")
    assert "exact match n won lost difference" in shown[2]
    assert shown[4].startswith("all 10 10 0 +1.000 ")
    assert "0.002" in shown[4]
    document = json.loads(run("compare", first, second, "--force", "--json").stdout)
    assert document["rows"]["all"]["test"]["wins"] == 10
    assert next(iter(document)) == "warnings"


def test_audit_flags_and_enters_the_report(first: Path, second: Path) -> None:
    """An exit code of 0 for a flagged result, or an audit that the report does not show."""
    mistaken = run("audit", first, "--direct", second)
    assert (mistaken.exit_code, mistaken.stderr) == (
        2,
        f"search-rl: {second} is no closed-book result: its episodes read passages\n",
    )
    flagged = run("audit", first)
    assert flagged.exit_code == 1
    assert lines(flagged)[0] == "1 of 14 checks flagged: same_query"
    assert "same_query: nq 0 [colour] -> blue" in flagged.stdout
    assert "left out: question_overlap and answer_overlap: give --train" in flagged.stdout
    assert json.loads((first / "audit.json").read_text())["headline"].startswith("1 of 14")
    assert "FLAGGED" in (first / "report.html").read_text()
    assert run("audit", second).exit_code == 0
    assert json.loads(run("audit", first, "--json").stdout)["findings"]


def test_audit_reads_the_training_questions(second: Path, tmp_path: Path) -> None:
    """A --train that is not looked into."""
    train = tmp_path / "train.jsonl"
    train.write_text(json.dumps({"id": "1", "question": "NQ 3?", "golden_answers": ["Red"]}) + "\n")
    document = json.loads(run("audit", second, "--train", train, "--json").stdout)
    hits = {finding["check"]: finding["num_hits"] for finding in document["findings"]}
    assert (hits["question_overlap"], hits["answer_overlap"]) == (1, 10)


def test_seeds(tmp_path: Path) -> None:
    """Folders that are read in another order, or a seed that makes results unlike."""
    folders = [
        write(
            tmp_path / str(seed),
            [told(question, "red" if number < seed else "blue") for number, question in enumerate(QUESTIONS)],
            rules=protocol(sampling={"temperature": 1.0, "seed": seed}),
        )
        for seed in (2, 4)
    ]
    shown = lines(run("seeds", *folders))
    assert shown[:2] == [f"{tmp_path.name}/2 0.200", f"{tmp_path.name}/4 0.400"]
    assert shown[2] == "standard deviation over 2 results 0.1414"
    assert shown[5].startswith("all 10 0.300 ")
    assert json.loads(run("seeds", *folders, "--json").stdout)["rows"]["all"]["pass_at"]["2"]["mean"] == 0.4
    assert run("seeds", folders[0]).exit_code == 2


def test_report_of_an_older_result(first: Path) -> None:
    """A result from before there were reports and protocols that cannot be shown."""
    for name in ("report.md", "report.html", "row.csv", "protocol.json", "questions.jsonl"):
        (first / name).unlink()
    result = run("report", first)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(first / "report.html")
    assert "exact match 0.000 [0.000, 0.278], 10 questions" in (first / "report.md").read_text()


@pytest.mark.parametrize("verb", [("compare", "x", "y"), ("seeds", "x", "y"), ("audit", "x"), ("report", "x")])
def test_no_result_is_one_line(verb: tuple[str, ...]) -> None:
    """A traceback for a folder that holds no evaluation."""
    result = run(*verb)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "holds no finished evaluation" in result.stderr


def test_options_of_an_evaluation_before_a_verb_are_refused(first: Path) -> None:
    """An option that is read and not heard."""
    result = run("--top-k", "5", "report", first)
    assert (result.exit_code, result.stderr) == (
        2,
        "search-rl: --top-k belongs to an evaluation, not to eval report: leave it out\n",
    )


def test_a_plain_eval_is_an_evaluation_still() -> None:
    """`search-rl eval` that shows its help, or asks for a verb."""
    result = run()
    assert (result.exit_code, result.stderr) == (
        2,
        "search-rl: no model: give --model with a checkpoint folder, or --config\n",
    )
