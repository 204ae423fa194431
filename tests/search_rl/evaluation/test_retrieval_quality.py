"""Answer hits and evidence, counted by hand on four questions."""

from __future__ import annotations

import pytest

from retriever_server.schema import Passage, ScoredPassage
from search_rl.evaluation.retrieval_quality import quality_to_json, retrieval_quality, top_ks
from search_rl.profiles import SEARCH_R1
from search_rl.types import Question

PASSAGES = {
    "lima": Passage("lima", "Lima", "Lima is the capital of Peru."),
    "peru": Passage("peru", "Peru", "Peru has the head of state Dina Boluarte."),
    "norway": Passage("norway", "Norway", "Norway is a kingdom."),
}
QUESTIONS = (
    Question("1", "Which country's capital is Lima?", ("Peru",), "test", evidence_ids=("lima",)),
    Question("2", "Who leads it?", ("Boluarte", "Dina Boluarte"), "test", evidence_ids=("lima", "peru")),
    Question("3", "Is Norway a republic?", ("No",), "test", evidence_ids=("norway",)),
    Question("4", "What is a way out of no?", ("way",), "test"),
)


def hits(*ids: str) -> list[ScoredPassage]:
    """Passages in this order."""
    return [ScoredPassage(PASSAGES[identifier], 1.0) for identifier in ids]


def test_each_figure_is_over_the_questions_that_it_can_judge() -> None:
    """Would catch yes-or-no questions that any text answers, missing evidence that counts 0, or a hit past k."""
    answers = [hits("norway", "lima"), hits("lima", "norway", "peru"), hits("norway"), hits("norway")]
    recalls = {1: [1.0, 0.0, 1.0, 0.0], 3: [1.0, 0.5, 1.0, 1.0]}
    quality = retrieval_quality(QUESTIONS, answers, SEARCH_R1, 3, recalls=recalls)
    assert (quality.num_questions, quality.num_yes_or_no, quality.num_without_evidence) == (4, 1, 1)
    at_1, at_3 = quality.by_k
    assert (at_1.top_k, at_3.top_k) == (1, 3)
    assert at_1.recall is not None and at_1.recall.mean == 0.5
    # "Norway" covers "way", but not on token boundaries.
    assert at_1.answer_hit is not None and at_1.answer_hit.mean == pytest.approx(1 / 3)
    assert at_1.token_answer_hit is not None and at_1.token_answer_hit.mean == 0
    assert at_3.answer_hit is not None and at_3.answer_hit.mean == 1
    assert at_3.token_answer_hit is not None and at_3.token_answer_hit.mean == pytest.approx(2 / 3)
    assert at_1.evidence_recall is not None and at_1.evidence_recall.mean == pytest.approx(0.5)
    assert at_3.evidence_recall is not None and at_3.evidence_recall.mean == 1
    assert at_1.all_evidence is not None and at_1.all_evidence.mean == pytest.approx(1 / 3)
    assert quality_to_json(quality, 12.0)["by_k"][1]["all_evidence"]["mean"] == 1


def test_evidence_by_title() -> None:
    """Would catch `index eval` that knows no evidence for the multi-hop benchmarks."""
    question = Question("5", "Who leads Peru?", ("Boluarte",), "musique", evidence_titles=("Peru", "LIMA"))
    at_1, at_3 = retrieval_quality([question], [hits("norway", "lima", "peru")], SEARCH_R1, 3).by_k
    shares = [at.mean for it in (at_1, at_3) for at in (it.evidence_recall, it.all_evidence) if at is not None]
    assert shares == [0.0, 0.0, 1.0, 1.0]


def test_what_no_question_can_tell_is_none() -> None:
    """Would catch a mean over nothing, which is a traceback or a zero."""
    (at_1,) = retrieval_quality(QUESTIONS[2:3], [[]], SEARCH_R1, 1).by_k
    assert (at_1.recall, at_1.answer_hit, at_1.token_answer_hit) == (None, None, None)
    assert at_1.evidence_recall is not None and at_1.evidence_recall.mean == 0


def test_the_largest_k_is_among_them_once() -> None:
    """Would catch a table without the k that was asked for."""
    assert (top_ks(1), top_ks(7), top_ks(10)) == ([1], [1, 3, 5, 7], [1, 3, 5, 10])
