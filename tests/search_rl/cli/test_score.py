"""`search-rl score` from the command line: figures, the order of its report, and what it says to bad input."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from search_rl.cli.main import app
from tests.search_rl.evaluation.judging_app import JudgingApp

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prediction": "The Beatles", "golden_answers": ["Beatles"], "model": "x"},
    {"id": 2, "prediction": "Yes, it is", "golden_answers": ["yes", "true"]},
    {"id": "c", "prediction": "Norway", "golden_answers": "no"},
    {"id": "d", "prediction": "O\u2019Neill", "golden_answers": ["O'Neill"]},
]
GOOD = json.dumps(ROWS[0])

Score = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the predictions are."""
    return tmp_path / "predictions.jsonl"


@pytest.fixture
def score(file: Path) -> Score:
    """Write the rows (texts as they are) and score them."""

    def run(rows: list[Any], *flags: str) -> Result:
        file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return CliRunner().invoke(app, ["score", str(file), *flags])

    return run


def test_report(score: Score) -> None:
    """Figures under another row's id or another metric's heading, or a mean that does not agree with the rows."""
    result = score(ROWS)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines() if line.strip()]
    assert lines[:6] == [
        "exact match 0.250 [0.046, 0.699], 4 rows, profile search_r1",
        "id EM F1 cover token cover",
        "a 1.000 1.000 1.000 1.000",
        "2 0.000 0.500 1.000 1.000",
        "c 0.000 0.000 1.000 0.000",
        "d 0.000 0.000 0.000 0.000",
    ]
    assert lines[6] == "profile search_r1 mean 95 %"
    assert lines[8] == "exact match 0.250 0.046 to 0.699"
    assert lines[9].startswith("F1 0.375 ")
    assert lines[10] == "cover exact match 0.750 0.301 to 0.954"
    assert lines[11] == "token cover exact match 0.500 0.150 to 0.850"


MEANS = {
    "search_r1": (0.25, 0.375, 0.75, 0.5),
    "squad": (0.25, 0.375, 0.75, 0.5),
    "hotpot": (0.25, 0.25, 0.75, 0.5),
    "nq_open": (0.25, 0.375, 0.75, 0.5),
    "triviaqa": (0.5, 0.625, 1.0, 0.75),
    "popqa_acc": (0.0, (2 / 3 + 0) / 4, 0.75, 0.5),
    "musique": (0.25, 0.375, 0.75, 0.5),
    "flashrag": (0.25, 0.25, 0.75, 0.5),
}


@pytest.mark.parametrize("profile", MEANS)
def test_json_of_every_profile(score: Score, profile: str) -> None:
    """--profile read and not used, text around the JSON, or a row without one of the metrics."""
    result = score(ROWS, "--json", "--profile", profile)
    document = json.loads(result.stdout)
    assert document["profile"] == profile
    assert document["headline"].endswith(f", 4 rows, profile {profile}")
    assert (document["num_rows"], document["num_missing"], document["num_bad"]) == (4, 0, 0)
    assert [row["id"] for row in document["rows"]] == ["a", "2", "c", "d"]
    for metric, mean in zip(document["means"], MEANS[profile], strict=True):
        assert document["means"][metric]["mean"] == pytest.approx(mean)
        assert document["means"][metric]["n"] == 4
        assert sum(row[metric] for row in document["rows"]) == pytest.approx(4 * mean)


def test_popqas_first_line_is_its_accuracy(score: Score) -> None:
    """An exact match on raw text, which nobody reports, quoted as PopQA's accuracy."""
    assert score(ROWS, "--profile", "popqa_acc").output.startswith("cover exact match 0.750 ")


@pytest.mark.parametrize("missing", ['"prediction": null, ', '"prediction": NaN, ', ""], ids=["null", "NaN", "absent"])
def test_a_missing_prediction_counts_zero_and_is_told_first(score: Score, missing: str) -> None:
    """A better mean by answering less, or a missing answer that matches an accepted answer of nothing."""
    rows = [GOOD, f'{{"id": "b", {missing}"golden_answers": ["The"]}}']
    result = score(rows)
    assert result.exit_code == 0
    assert result.output.startswith("1 of 2 predictions missing, counted 0: exact match 0.500 ")
    assert "b   0.000  0.000  0.000        0.000  no prediction\n" in result.output
    document = json.loads(score(rows, "--json").stdout)
    assert document["num_missing"] == 1
    assert [row["is_missing"] for row in document["rows"]] == [False, True]


def test_an_empty_prediction_is_not_missing(score: Score) -> None:
    """An agent that answered nothing reported as one that did not answer."""
    result = score([GOOD, {"id": "b", "prediction": "", "golden_answers": ["Paris"]}])
    assert result.output.startswith("exact match 0.500 ")


BAD_ROWS = {
    "not JSON": ("{", "not JSON: "),
    "not an object": ('["a"]', "['a'] is not an object"),
    "not UTF-8": ('{"id": "\udcff"}', "not JSON: "),
    "nested": ("[" * 100_000, "not JSON: nested too deeply"),
    "no id": ('{"prediction": "x", "golden_answers": ["x"]}', "id is missing"),
    "id true": ('{"id": true, "prediction": "x", "golden_answers": ["x"]}', "id is bool True, not text"),
    "same id": ('{"id": "a", "prediction": "x", "golden_answers": ["x"]}', "id 'a' was used by line 1"),
    "number": ('{"id": "b", "prediction": 3, "golden_answers": ["3"]}', "prediction is int 3, not text"),
    "list": ('{"id": "b", "prediction": ["x"], "golden_answers": ["x"]}', "prediction is list ['x'], not text"),
    "surrogate": ('{"id": "b", "prediction": "\\ud800", "golden_answers": ["x"]}', "half of a surrogate pair"),
    "no golds": ('{"id": "b", "prediction": "x"}', "golden_answers is None, not a list"),
    "golds empty": ('{"id": "b", "prediction": "x", "golden_answers": []}', "golden_answers is empty"),
    "golds NaN": ('{"id": "b", "prediction": "x", "golden_answers": NaN}', "golden_answers is nan, not a list"),
    "golds dict": ('{"id": "b", "prediction": "x", "golden_answers": {"a": 1}}', "golden_answers is {'a': 1}, not"),
    "golds number": ('{"id": "b", "prediction": "x", "golden_answers": 2}', "golden_answers is 2, not a list"),
    "gold number": ('{"id": "b", "prediction": "x", "golden_answers": ["x", 2]}', "a golden answer is int 2, not text"),
    "gold NaN": ('{"id": "b", "prediction": "x", "golden_answers": [NaN]}', "a golden answer is missing"),
    "gold blank": ('{"id": "b", "prediction": "x", "golden_answers": [" "]}', "a golden answer is empty"),
}


@pytest.mark.parametrize(("row", "fault"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_named_and_can_be_left_out(file: Path, row: str, fault: str) -> None:
    """A traceback, a bad row that scores, a wrong line number (a blank line counts), or one that stops --skip-bad."""
    file.write_bytes(f"{GOOD}\n\n{row}\n".encode("utf-8", "surrogateescape"))
    result = CliRunner().invoke(app, ["score", str(file)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"search-rl: {file} line 3: ")
    assert fault in result.stderr
    assert result.stderr.count("\n") == 1
    skipped = CliRunner().invoke(app, ["score", str(file), "--skip-bad"])
    assert skipped.exit_code == 0
    assert skipped.stdout.startswith("1 of 2 rows bad, left out: exact match 1.000 ")
    assert f"{file} line 3: " in skipped.stderr


def test_nothing_to_score(score: Score, file: Path, tmp_path: Path) -> None:
    """A mean of nothing, or a traceback for a path that cannot be read."""
    assert score([]).stderr == f"search-rl: {file} holds no usable prediction (0 bad rows)\n"
    only_bad = score(["{"], "--skip-bad")
    assert (only_bad.exit_code, only_bad.stderr) == (2, f"search-rl: {file} holds no usable prediction (1 bad rows)\n")
    for path, why in ((tmp_path / "absent", "No such file or directory"), (tmp_path, "Is a directory")):
        result = CliRunner().invoke(app, ["score", str(path)])
        assert (result.exit_code, result.stderr) == (2, f"search-rl: cannot read {path}: {why}\n")


def test_an_unknown_profile_is_told_before_the_file_is_read(tmp_path: Path) -> None:
    """A mistyped profile that is scored as the default."""
    result = CliRunner().invoke(app, ["score", str(tmp_path / "absent"), "--profile", "hotpt"])
    assert (result.exit_code, result.stderr) == (2, "search-rl: unknown profile 'hotpt': did you mean 'hotpot'?\n")


def test_an_id_cannot_write_to_the_terminal(score: Score) -> None:
    """An id with a line break that forges a row, or with an escape sequence."""
    output = score([{"id": "a\n\x1b[2J", "prediction": "x", "golden_answers": ["x"]}]).output
    assert "\x1b" not in output
    assert "'a\\n\\x1b[2J'  1.000" in output


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["id", "prediction", "golden_answers"]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
                lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
                max_leaves=3,
            ),
        ),
        max_size=4,
    )
)
def test_any_rows_give_figures_or_one_line(score: Score, rows: list[dict[str, Any]]) -> None:
    """A kind of bad value that nobody thought of and that ends in a traceback or is left out uncounted."""
    result = score(rows, "--json", "--skip-bad")
    if result.exit_code:
        assert result.exit_code == 2
        assert result.stderr.count("holds no usable prediction") == 1
    else:
        document = json.loads(result.stdout)
        assert document["num_rows"] + document["num_bad"] == len(rows)


@pytest.fixture
def judge() -> Iterator[tuple[JudgingApp, str]]:
    """A judging server on loopback, which wants a token."""
    served = JudgingApp(token="secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(served.app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield served, f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_a_judge_stands_beside_the_scores(score: Score, judge: tuple[JudgingApp, str], tmp_path: Path) -> None:
    """A judge's figure in one table with exact match, verdicts that are lost, or a judge that changes a score."""
    served, url = judge
    (tmp_path / "token").write_text("secret\n")
    flags = ("--judge", url, "--judge-model", "org/judge", "--judge-token-file", str(tmp_path / "token"))
    result = score(ROWS, *flags)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(score(ROWS).output)
    assert "judged right 0.750 [0.301, 0.954], 4 rows, judge org/judge" in result.output
    assert "judge" not in result.output.split("judged right")[0]
    kept = tmp_path / "predictions.org_judge.verdicts.jsonl"
    assert len(kept.read_text().splitlines()) == 4
    document = json.loads(score(ROWS, "--json", *flags).stdout)
    assert "judge" not in document["means"] and "judge" not in document["rows"][0]
    assert document["judge"]["model"] == "org/judge"
    assert [verdict["is_right"] for verdict in document["judge"]["verdicts"]] == [True, True, True, False]
    assert len(served.requests) == 4


def test_a_judge_that_fails_is_told_with_exit_code_one(
    score: Score, judge: tuple[JudgingApp, str], tmp_path: Path
) -> None:
    """A judge's figure over half of the rows that looks like one over all, or scores lost with the judge."""
    (tmp_path / "token").write_text("secret")
    rows = [GOOD, {"id": "b", "prediction": "refused", "golden_answers": ["x"]}]
    result = score(rows, "--judge", judge[1], "--judge-model", "m", "--judge-token-file", str(tmp_path / "token"))
    assert result.exit_code == 1
    assert result.output.startswith("exact match 0.500 ")
    assert "NOT VALID: 1 of 2 without a verdict, counted wrong: judged right 0.500 " in result.output
    assert "no verdict on b: " in result.output
    refused = score(rows, "--judge", judge[1], "--judge-model", "m", "--verdicts", str(tmp_path / "v.jsonl"))
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "401" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--judge", "http://127.0.0.1:9"), "needs --judge-model"),
        (("--judge-model", "m"), "--judge-model m needs --judge"),
        (("--verdicts", "v"), "--verdicts v needs --judge"),
        (("--judge", "nowhere", "--judge-model", "m"), "must look like http://"),
        (("--judge", "http://127.0.0.1:9", "--judge-model", "m", "--judge-token-file", "none"), "cannot be read"),
    ],
)
def test_options_of_a_judge_that_do_not_fit(score: Score, flags: tuple[str, ...], fault: str) -> None:
    """A judge that is asked for and silently left out."""
    result = score([GOOD], *flags)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert fault in result.stderr
