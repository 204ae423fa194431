"""Figures by kind, as JSON and as tables."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from pytest import approx
from rich.console import Console
from rich.table import Table

from search_rl.evaluation.runner import Evaluation
from search_rl.evaluation.stages import Stage, compare, paired_table, stages_table
from search_rl.evaluation.summary import summarise, summary_to_json
from search_rl.evaluation.tables import summary_table
from search_rl.profiles import PROFILES
from search_rl.types import Question
from tests.search_rl.conftest import ByteCodec, FixedSearcher
from tests.search_rl.evaluation.conftest import ANSWER, SEARCH, ReplyingEngine, Run, ask

QUESTIONS = (
    ask("q0", "red"),
    ask("q1", "dark blue"),
    ask("q2", "green", kind="two_hop"),
    ask("q3", "grey", kind="two_hop"),
)
SEARCHED = [SEARCH.format("x"), ANSWER.format("green")]
BEFORE = [
    [ANSWER.format("red")],
    [ANSWER.format("blue")],
    ["nothing", "at all"],
    ["hm", ANSWER.format("grey")],
]
AFTER = [
    [ANSWER.format("red")],
    [ANSWER.format("dark blue")],
    SEARCHED,
    [SEARCH.format("y"), ANSWER.format("x")],
]


def evaluation(run: Run, codec: ByteCodec, replies: list[list[str]], path: Path) -> Evaluation:
    """The four questions answered so."""
    by_key = {question.key: reply for question, reply in zip(QUESTIONS, replies, strict=True)}
    found = run(QUESTIONS, ReplyingEngine(codec, by_key), out_path=path)
    return Evaluation(found.rollouts, seconds=12.0)


@pytest.fixture
def before(run: Run, codec: ByteCodec, tmp_path: Path) -> Stage:
    """Two right answers; one of them after a turn that held no action, one answer half right, one missing."""
    return Stage("before", evaluation(run, codec, BEFORE, tmp_path / "before.jsonl"))


@pytest.fixture
def after(run: Run, codec: ByteCodec, tmp_path: Path) -> Stage:
    """Three right answers, all well formed; one that was right is wrong now."""
    return Stage("after", evaluation(run, codec, AFTER, tmp_path / "after.jsonl"))


def lines(table: Table) -> list[str]:
    """What a wide terminal shows, without the spaces around."""
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table)
    return [" ".join(line.split()) for line in console.export_text().splitlines() if line.strip()]


def test_figures_by_kind(before: Stage) -> None:
    """Kinds mixed up, an unanswered question left out, or a malformed turn that counts as well formed."""
    summary = summarise(before.evaluation)
    assert list(summary.kinds) == ["all", "one_hop", "two_hop"]
    every, one, two = summary.kinds.values()
    assert [part.exact_match.mean for part in (every, one, two)] == [0.5, 0.5, 0.5]
    assert every.f1.mean == approx((1 + 2 / 3 + 0 + 1) / 4)
    assert [part.format_rate.mean for part in (every, one, two)] == [0.5, 1.0, 0.0]
    assert every.stop_reasons == {
        "answered": 3,
        "max_turns": 0,
        "max_tokens": 0,
        "malformed": 1,
        "search_failed": 0,
        "engine_failed": 0,
    }
    assert every.exact_match.n == 4


def test_searches_and_tokens(after: Stage, codec: ByteCodec) -> None:
    """Searches averaged over turns, or retrieved tokens counted as the policy's."""
    figures = summarise(after.evaluation).kinds
    assert [figures[kind].searches_per_question for kind in ("all", "one_hop", "two_hop")] == [0.5, 0.0, 1.0]
    written = sum(len(codec.encode(text)) for reply in AFTER for text in reply)
    assert figures["all"].policy_tokens == approx(written / 4)
    assert figures["all"].sequence_tokens > figures["all"].policy_tokens + 50


def test_json_round_trips_and_says_first_whether_it_is_valid(before: Stage) -> None:
    """A result that needs reading to the end to know whether it may be quoted, or values JSON cannot hold."""
    document = summary_to_json(summarise(before.evaluation))
    assert list(document)[:2] == ["is_valid", "headline"]
    assert document["headline"] == "exact match 0.500 [0.150, 0.850], 4 questions, profile search_r1"
    assert document["profile"] == "search_r1"
    stored = json.loads(json.dumps(document))
    assert stored["kinds"]["two_hop"]["exact_match"] == {
        "mean": 0.5,
        "low": approx(0.0945, abs=1e-3),
        "high": approx(0.9055, abs=1e-3),
        "n": 2,
    }


def test_failures_make_a_result_invalid(run: Run, codec: ByteCodec) -> None:
    """Figures that look sound although the retriever was down for part of the questions."""
    engine = ReplyingEngine(codec, {QUESTIONS[0].key: [SEARCH.format("x")]})
    summary = summarise(run(QUESTIONS[:1], engine, searcher=FixedSearcher(error="down")))
    assert not summary.is_valid
    assert summary.headline.startswith("NOT VALID: 1 of 1 questions failed (over 0.1%) and count as wrong: ")


def test_a_thousandth_may_fail(before: Stage, run: Run, codec: ByteCodec, tmp_path: Path) -> None:
    """A bound off by one: 1 of 1000 is allowed, 1 of 999 is not."""
    engine = ReplyingEngine(codec, {QUESTIONS[0].key: [SEARCH.format("x")]})
    failed = run(QUESTIONS[:1], engine, searcher=FixedSearcher(error="down"), out_path=tmp_path / "x.jsonl").rollouts
    (bad,), (good,) = failed, before.evaluation.rollouts[:1]
    summary = summarise(Evaluation([bad, *[good] * 999], 1.0))
    assert summary.is_valid
    assert summary.headline.startswith("1 of 1000 questions failed and count as wrong: exact match 0.999 ")
    assert not summarise(Evaluation([bad, *[good] * 998], 1.0)).is_valid


@pytest.mark.parametrize("num_failed", [1, 3, 7, 51])
def test_exactly_a_thousandth_is_valid_and_more_is_not(before: Stage, num_failed: int) -> None:
    """A bound that floats move: 3 of 3,000 not valid, or 3 of 2,999 valid."""
    summary = summarise(before.evaluation)
    exactly = dataclasses.replace(summary, num_failed=num_failed, num_questions=1000 * num_failed)
    above = dataclasses.replace(summary, num_failed=num_failed, num_questions=1000 * num_failed - 1)
    assert (exactly.is_valid, above.is_valid) == (True, False)
    assert exactly.headline.startswith(f"{num_failed} of {1000 * num_failed} questions failed and count as wrong: ")
    assert above.headline.startswith(f"NOT VALID: {num_failed} of {1000 * num_failed - 1} questions failed (over 0.1%)")


def test_questions_without_a_kind_go_by_data_set(run: Run, codec: ByteCodec) -> None:
    """Search-R1's seven data sets in one pot."""
    questions = [Question("1", "a?", ("x",), dataset) for dataset in ("nq", "hotpotqa")]
    engine = ReplyingEngine(codec, {question.key: [ANSWER.format("x")] for question in questions})
    assert list(summarise(run(questions, engine)).kinds) == ["all", "hotpotqa", "nq"]


def test_compare_pairs_by_question(before: Stage, after: Stage) -> None:
    """Results paired by position, which reordering would change."""
    tests = compare(before.evaluation.rollouts, after.evaluation.rollouts[::-1])
    assert list(tests) == ["all", "one_hop", "two_hop"]
    assert [(test.wins, test.losses) for test in tests.values()] == [(2, 1), (1, 0), (1, 1)]
    assert tests["all"].p_value == approx(1.0)
    assert compare(before.evaluation.rollouts[:1], after.evaluation.rollouts)["all"].difference.n == 1


def test_the_profile_scores_figures_and_pairs(run: Run, codec: ByteCodec, tmp_path: Path) -> None:
    """A profile that names the report and does not score it, or a comparison that another one scores."""
    questions = (ask("q0", "Pa-ris"), ask("q1", "red"))

    def answered(name: str, *answers: str) -> Stage:
        replies = {q.key: [ANSWER.format(answer)] for q, answer in zip(questions, answers, strict=True)}
        found = run(questions, ReplyingEngine(codec, replies), out_path=tmp_path / name)
        return Stage(name, dataclasses.replace(found, profile=PROFILES["triviaqa"]))

    first, second = answered("first", "x", "red"), answered("second", "Paris", "red or blue")
    summary = summarise(second.evaluation)
    assert summary.headline.startswith("exact match 0.000 ")
    assert summary.headline.endswith(", profile triviaqa")
    assert summary.kinds["all"].cover_exact_match.mean == summary.kinds["all"].token_cover_exact_match.mean == 0.5
    assert lines(paired_table(first, second))[2].startswith("all 2 0 1 ")
    by_default = compare(first.evaluation.rollouts, second.evaluation.rollouts)["all"]
    assert (by_default.wins, by_default.losses) == (1, 1)


def test_popqas_headline_is_its_accuracy(before: Stage) -> None:
    """An exact match on raw text, which nobody reports, quoted as PopQA's accuracy."""
    by_popqa = dataclasses.replace(before.evaluation, profile=PROFILES["popqa_acc"])
    assert summarise(by_popqa).headline == "cover exact match 0.500 [0.150, 0.850], 4 questions, profile popqa_acc"


def test_compare_needs_common_questions(before: Stage) -> None:
    """A p-value of nothing."""
    with pytest.raises(ValueError, match="at least one"):
        compare(before.evaluation.rollouts, ())


def test_summary_table(before: Stage) -> None:
    """A column under the wrong heading."""
    heading, _, every, *_ = lines(summary_table(summarise(before.evaluation)))
    assert heading == "questions n exact match 95 % F1 cover format searches tokens stopped by"
    tokens = summarise(before.evaluation).kinds["all"].sequence_tokens
    assert every == f"all 4 0.500 0.150 to 0.850 0.667 0.500 50.0% 0.00 {tokens:.0f} answered 3, malformed 1"


def test_stages_table(before: Stage, after: Stage) -> None:
    """Stages in the wrong column or kinds in the wrong row."""
    rows = lines(stages_table([before, after]))
    assert rows[0] == "before after"
    assert rows[2:] == [
        "exact match, all 0.500 [0.150 to 0.850] 0.750 [0.301 to 0.954]",
        "exact match, one_hop 0.500 [0.095 to 0.905] 1.000 [0.342 to 1.000]",
        "exact match, two_hop 0.500 [0.095 to 0.905] 0.500 [0.095 to 0.905]",
        "searches a question 0.00 0.50",
        "format rate 50.0% 100.0%",
        "failed 0 0",
        "seconds 12 12",
    ]


def test_paired_table(before: Stage, after: Stage) -> None:
    """Won and lost the wrong way round."""
    heading, _, every, one, two = lines(paired_table(before, after))
    assert heading == "before → after n won lost difference 95 % p (McNemar)"
    assert every.startswith("all 4 2 1 +0.250 ") and every.endswith(" 1")
    assert one.startswith("one_hop 2 1 0 +0.500 ")
    assert two.startswith("two_hop 2 1 1 +0.000 ")
