"""What retrieval found, by hand-counted numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from pytest import approx

from search_rl.evaluation.ceiling import ceiling, ceiling_rows
from search_rl.evaluation.outcomes import outcome_of
from search_rl.evaluation.retrieval_figures import SearchFigures, retrieval_figures, retrieval_row
from search_rl.profiles import SEARCH_R1
from search_rl.types import (
    Answer,
    Observation,
    Origin,
    Passage,
    Question,
    ScoredPassage,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)
from tests.search_rl.conftest import FixedSearcher

TEXTS = {
    "peru": "Peru's capital is Lima.",
    "chile": "Chile is long.",
    "limal": "Limalonges is a village.",
    "yes": "Yes is a band.",
}


def result(query: str, *ids: str) -> SearchResult:
    """These passages for that query."""
    return SearchResult(query, tuple(ScoredPassage(Passage(name, name, TEXTS[name]), 1.0) for name in ids))


def episode(
    answer: str,
    *results: SearchResult,
    evidence: tuple[str, ...] = (),
    golds: tuple[str, ...] = ("Lima",),
    given: SearchResult | None = None,
) -> Trajectory:
    """Searches that took a second, two seconds, …, then the answer."""
    turns = [
        Turn(
            Segment(Origin.POLICY, (1,), (0.0,)),
            "",
            Search(found.query),
            observed(found),
            Segment(Origin.ENVIRONMENT, (2,)),
            search_seconds=float(number),
        )
        for number, found in enumerate(results, start=1)
    ]
    last = Turn(Segment(Origin.POLICY, (1,), (0.0,)), "", Answer(answer))
    question = Question("q", "?", golds, "demo", evidence_ids=evidence)
    prompt = Segment(Origin.PROMPT, (1,))
    return Trajectory(question, prompt, (*turns, last), StopReason.ANSWERED, given=given, given_seconds=0.5)


def observed(found: SearchResult) -> Observation:
    """The observation of a search."""
    return Observation("x", (found,))


EPISODES = (
    episode("Lima", result("a", "chile"), result("b", "chile", "peru"), evidence=("peru", "chile")),
    episode("x", result("a", "limal"), result(" A ", "limal"), evidence=("peru",)),
    episode("Lima"),
    episode("yes", result("a", "yes"), golds=("yes",)),
    episode("Lima", result("a")),
)


def test_figures_of_five_episodes() -> None:
    """A hit inside a word counted, yes found everywhere, evidence of one search credited to another, or questions
    without searches left out of the mean.
    """
    figures = retrieval_figures([retrieval_row(it, SEARCH_R1) for it in EPISODES], depths=(1, 2))
    assert figures.num_questions == 5
    assert figures.searches_per_question == approx(6 / 5)
    assert figures.no_search_share == approx(1 / 5)
    assert figures.repeated_share == approx(1 / 5)
    assert figures.empty_share == approx(1 / 6)
    hits = {k: (hit.mean, hit.n) for k, hit in figures.answer_hit_at.items() if hit}
    assert hits == {1: (0.0, 4), 2: (0.25, 4)}
    assert figures.answer_hit_inside_words and figures.answer_hit_inside_words.mean == 0.5
    assert figures.evidence_recall and (figures.evidence_recall.mean, figures.evidence_recall.n) == (0.5, 2)
    found, missed = figures.exact_match_found, figures.exact_match_not_found
    assert found and (found.mean, found.n) == (1.0, 1)
    assert missed and (missed.mean, missed.n) == (2 / 3, 3)
    assert figures.evidence_found_share and figures.evidence_found_share.mean == 0.25
    assert figures.latency and figures.latency.mean_seconds == approx((1 + 2 + 1 + 2 + 1 + 1) / 6)


def test_figures_by_search() -> None:
    """The second search's find counted for the first, or recall that forgets what was read before."""
    first, second = retrieval_figures([retrieval_row(it, SEARCH_R1) for it in EPISODES], depths=(2,)).by_search
    assert (first.number, first.num_episodes, second.num_episodes) == (1, 4, 2)
    assert first.evidence_recall and first.evidence_recall.mean == 0.25
    assert second.evidence_recall and second.evidence_recall.mean == 0.5
    assert second.evidence_recall_so_far and second.evidence_recall_so_far.mean == 0.5
    assert hits(first) == {2: (0.0, 3)}
    assert hits(second) == {2: (0.5, 2)}


def hits(figures: SearchFigures) -> dict[int, tuple[float, int]]:
    """Answer hits by depth: mean and number."""
    return {k: (found.mean, found.n) for k, found in figures.answer_hit_at.items() if found}


def recalls(figures: SearchFigures) -> tuple[float, float]:
    """The evidence that one search found, and that was read by then."""
    assert figures.evidence_recall and figures.evidence_recall_so_far
    return figures.evidence_recall.mean, figures.evidence_recall_so_far.mean


def test_turn_by_turn_in_one_episode_of_two_searches() -> None:
    """A hit at any depth counted at every depth, the hit of the first search kept for the second, or recall of a search
    that forgets or repeats what another one found."""
    needed = ("peru", "chile", "limal")
    searched = result("a", "chile", "peru"), result("b", "limal", "chile")
    row = retrieval_row(episode("Lima", *searched, evidence=needed), SEARCH_R1)
    first, second = retrieval_figures([row], depths=(1, 2)).by_search
    assert (first.number, second.number) == (1, 2)
    assert (hits(first), hits(second)) == ({1: (0.0, 1), 2: (1.0, 1)}, {1: (0.0, 1), 2: (0.0, 1)})
    assert recalls(first) == approx((2 / 3, 2 / 3))
    assert recalls(second) == approx((2 / 3, 1.0))
    handed = retrieval_row(episode("Lima", *searched, evidence=needed, given=result("", "limal")), SEARCH_R1)
    assert recalls(retrieval_figures([handed], depths=(1,)).by_search[0]) == approx((2 / 3, 1.0))


def test_two_queries_of_one_turn_are_two_searches() -> None:
    """Passages of two queries thrown together, so that the first search looks as good as both."""
    asked = result("a", "chile"), result("b", "peru")
    plain = episode("Lima", evidence=("peru", "chile"))
    turn = Turn(
        Segment(Origin.POLICY, (1,), (0.0,)), "", Search("a", ("b",)), Observation("x", asked),
        Segment(Origin.ENVIRONMENT, (2,)),
    )  # fmt: skip
    row = retrieval_row(replace(plain, turns=(turn, *plain.turns)), SEARCH_R1)
    first, second = retrieval_figures([row], depths=(1,)).by_search
    assert (hits(first), hits(second)) == ({1: (0.0, 1)}, {1: (1.0, 1)})
    assert (recalls(first), recalls(second)) == ((0.5, 0.5), (0.5, 1.0))


def by_title(question: Question) -> Question:
    """The question with its evidence named by the titles of the passages, written otherwise."""
    return replace(
        question, evidence_ids=(), evidence_titles=tuple(f'"{name.title()}"' for name in question.evidence_ids)
    )


def test_figures_by_title_are_those_by_passage() -> None:
    """A figure that goes by ids alone: HotpotQA, 2Wiki and MuSiQue would have no evidence recall there."""
    titled = [replace(it, question=by_title(it.question)) for it in EPISODES]
    assert any(it.question.evidence_titles for it in titled)
    by_passage, by_article = (
        retrieval_figures([retrieval_row(it, SEARCH_R1) for it in episodes], depths=(1, 2))
        for episodes in (EPISODES, titled)
    )
    assert by_article == by_passage
    assert [outcome_of(it, SEARCH_R1).evidence_found for it in titled] == [1.0, 0.0, None, None, None]


def test_what_is_handed_over_is_read_and_not_searched() -> None:
    """An oracle whose evidence counts as never found, or as a search of no seconds."""
    row = retrieval_row(episode("Lima", evidence=("peru",), given=result("", "peru")), SEARCH_R1)
    assert (row.is_evidence_found, row.searches, row.search_seconds) == (True, (), ())
    searched = retrieval_row(episode("Lima", evidence=("peru",), given=result("q", "peru")), SEARCH_R1)
    assert (searched.is_evidence_found, len(searched.searches), searched.search_seconds) == (True, 1, (0.5,))


def test_nothing_to_tell_is_none() -> None:
    """A mean of no questions, written as 0."""
    figures = retrieval_figures([retrieval_row(EPISODES[3], SEARCH_R1)], depths=(1,))
    assert figures.answer_hit_at == {1: None}
    assert (figures.evidence_recall, figures.exact_match_found, figures.exact_match_not_found) == (None, None, None)


def test_the_ceiling_is_what_deep_searches_find() -> None:
    """A ceiling at the policy's own depth, ranks off by one, or a failed search left out."""
    names = ("chile", "limal", "peru")
    hits = tuple(ScoredPassage(Passage(name, name, TEXTS[name]), 1.0) for name in names)
    questions = [
        Question("1", "a", ("Lima",), "demo", evidence_ids=("peru", "chile")),
        Question("2", "b", ("yes",), "demo"),
    ]

    async def rows(searcher: FixedSearcher) -> list[object]:
        found = await ceiling_rows(questions, searcher=searcher, profile=SEARCH_R1, concurrency=2)
        figures = ceiling(found)
        means = [
            {k: value.mean for k, value in by_depth.items() if value and k <= 3}
            for by_depth in (figures.answer_hit_at, figures.evidence_recall_at, figures.evidence_complete_at)
        ]
        return [figures.num_questions, figures.num_failed, *means]

    assert asyncio.run(rows(FixedSearcher(hits))) == [
        2, 0, {1: 0.0, 3: 1.0}, {1: 0.5, 3: 1.0}, {1: 0.0, 3: 1.0},
    ]  # fmt: skip
    assert asyncio.run(rows(FixedSearcher(error="down")))[:3] == [2, 2, {1: 0.0, 3: 0.0}]
    by_passage = asyncio.run(rows(FixedSearcher(hits)))
    questions[0] = by_title(questions[0])
    assert asyncio.run(rows(FixedSearcher(hits))) == by_passage
    twice = (hits[0], ScoredPassage(Passage("chile/2", "Chile", "Chile has a coast."), 1.0), hits[2])
    assert asyncio.run(rows(FixedSearcher(twice)))[3:] == [{1: 0.5, 3: 1.0}, {1: 0.0, 3: 1.0}]


def test_no_rows_are_no_figures() -> None:
    """A division by zero in place of an error."""
    with pytest.raises(ValueError, match="at least one"):
        retrieval_figures([], depths=(1,))
