"""Leakage checks on real questions of NQ, HotpotQA, 2WikiMultihopQA and the World Factbook."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl import answers
from search_rl.evaluation.audit import leakage
from search_rl.evaluation.audit.leakage import near_duplicates
from tests.search_rl.evaluation.told import ask, outcomes, told

NOBEL = ask("who got the first nobel prize in physics", "Wilhelm Conrad Röntgen")
CAPITAL = ask("What is the capital of the country whose internet country code is .bn?", "Bandar Seri Begawan")
OLDER = ask("Are the people older on the whole in France or in Sudan?", "France", "French Republic")
BAND = ask("Were Scott Derrickson and Ed Wood of the same nationality?", "yes")
TRAIN = [
    ask("Who got the first Nobel Prize in Physics?", "Röntgen", "wilhelm conrad röntgen"),
    ask("who won the first nobel prize for literature", "Sully Prudhomme"),
    ask("Which country has a longer coast, Norway or France?", "Norway"),
    ask("which nationality was the director of sinister", "American"),
    ask("Is the national capital of Brunei on the coast?", "yes"),
    ask("name the capital of brunei", "the Bandar Seri Begawan"),
]


def test_question_overlap_sees_through_case_articles_and_marks() -> None:
    """A paraphrase by case and punctuation taken for a new question, or two questions on one topic for the same."""
    found = leakage.question_overlap([NOBEL, CAPITAL, OLDER], TRAIN)
    assert (found.num_hits, found.num_cases) == (1, 3)
    assert found.examples == ("who got the first nobel prize in physics ~ Who got the first Nobel Prize in Physics?",)


def test_the_same_words_about_another_name_are_no_overlap() -> None:
    """A set made from templates called leaked: the currencies of Brunei and Albania are two questions."""
    template = "Under which three-letter code is the currency of {} traded?"
    brunei, train = ask(template.format("Brunei"), "BND"), [ask(template.format("Albania"), "ALL")]
    assert leakage.question_overlap([brunei], train).num_hits == 0
    assert leakage.question_overlap([brunei], [*train, ask(template.format("the Brunei"), "bnd")]).num_hits == 1


@pytest.mark.parametrize(
    ("text", "is_near"),
    [
        ("who got the first nobel prize in physics in 1901 alone", False),  # 7 of 9 words
        ("who got first ever nobel prize in physics", True),  # 7 of 8
        ("who got the first nobel prize in chemistry", False),  # 6 of 8
    ],
)
def test_near_is_four_words_in_five(text: str, is_near: bool) -> None:
    """A bound on the share of one side alone, or an article that counts."""
    assert bool(near_duplicates([NOBEL.text], [text])) == is_near


WORDS = ["the", "who", "won", "first", "nobel", "prize", "physics", "in", "chemistry", "brunei", "capital"]
words = st.lists(st.sampled_from(WORDS), max_size=7)
texts = st.lists(words.map(" ".join), min_size=1, max_size=5)


@settings(max_examples=100)
@given(texts, texts, st.sampled_from([0.5, 0.6, 0.75, 0.8, 1.0]))
def test_near_duplicates_are_those_of_all_pairs(mine: list[str], others: list[str], bound: float) -> None:
    """A pair that the filter by rare words loses."""

    def is_near(text: str, other: str) -> bool:
        first, second = (set(answers.normalise(it).split()) for it in (text, other))
        return bool(first) and len(first & second) >= bound * len(first | second)

    expected = {
        place: next(number for number, other in enumerate(others) if is_near(text, other))
        for place, text in enumerate(mine)
        if any(is_near(text, other) for other in others)
    }
    assert near_duplicates(mine, others, least_jaccard=bound) == expected


def test_answer_overlap_leaves_yes_and_no_out() -> None:
    """Every yes-or-no question called leaked, or answers compared as they are spelled."""
    found = leakage.answer_overlap([NOBEL, CAPITAL, OLDER, BAND], TRAIN[1:])
    assert (found.num_hits, found.num_cases) == (1, 3)
    assert found.examples == (CAPITAL.text,)


def test_answer_in_question_keeps_to_words() -> None:
    """A comparison that is missed, or "in" found inside "Indian"."""
    inside = ask("Which Indian state has the longest coast?", "in")
    found = leakage.answer_in_question([NOBEL, OLDER, BAND, inside])
    assert (found.num_hits, found.num_cases) == (1, 3)
    assert found.examples == ("Are the people older on the whole in France or in Sudan? = France",)


def test_empty_golds_are_counted() -> None:
    """An accepted answer of nothing that nobody hears of."""
    band = ask("Which band recorded Soul Mining?", "The The")
    assert leakage.empty_golds([NOBEL, band]).num_hits == 1
    assert leakage.empty_golds([NOBEL, band]).is_flagged
    assert not leakage.empty_golds([NOBEL]).is_flagged


def test_closed_book_shares() -> None:
    """Shares over the wrong questions: solvable ones are of all, those right without reading of the right ones."""
    questions = [NOBEL, CAPITAL, OLDER]
    mine = outcomes(
        [told(NOBEL, "Röntgen"), told(CAPITAL, "Bandar Seri Begawan", "Brunei"), told(OLDER, "France", "x")]
    )
    closed = outcomes([told(question, "France") for question in questions])
    by_key = {outcome.question.key: outcome for outcome in closed}
    solvable = leakage.closed_book_solvable(mine, by_key)
    assert (solvable.num_hits, solvable.num_cases) == (1, 3)
    without = leakage.right_without_reading(mine, by_key)
    assert (without.num_hits, without.num_cases) == (1, 2)
    assert leakage.closed_book_solvable(mine, {}).share is None
