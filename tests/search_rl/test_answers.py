"""Answer metrics: the checked pairs, the rules for empty texts, and the order of the metrics."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.answers import cover_exact_match, exact_match, f1, normalise

# Prediction, accepted answer, then exact match, cover match and F1 of the SQuAD family.
# Two rules of ours differ from Search-R1's and are marked: see the docstring of search_rl.profiles.
PAIRS = [
    ("The Beatles", "Beatles", 1, 1, 1),
    ("US", "U.S.", 1, 1, 1),
    ("rock n roll", "rock-n-roll", 0, 0, 0),
    ("Beyonc\u00e9", "Beyonce\u0301", 0, 0, 0),
    ("Beyonce", "Beyonc\u00e9", 0, 0, 0),
    ("1000", "1,000", 1, 1, 1),
    ("3.5", "35", 1, 1, 1),
    ("O\u2019Neill", "O'Neill", 0, 0, 0),
    ("1914\u20131918", "1914-1918", 0, 0, 0),
    ("new york", "new_york", 0, 0, 0),
    ("Vitamin", "Vitamin A", 1, 1, 1),
    ("Aha", "A-ha", 1, 1, 1),
    ("5 million", "$5 million", 1, 1, 1),
    ("Yes, it is", "yes", 0, 1, 0.5),
    ("no", "No.", 1, 1, 1),
    ("Norway", "no", 0, 1, 0),
    ("1992", "2", 0, 1, 0),
    ("2", "two", 0, 0, 0),
    ("anything", "The The", 0, 0, 0),  # cover match: 1 in Search-R1
    ("", "The", 1, 1, 1),  # F1: 0 in SQuAD 1.1, 1 in SQuAD 2.0
    ("", "", 1, 1, 1),  # F1: 0 in SQuAD 1.1, 1 in SQuAD 2.0
    ("Barack Obama", "Obama", 0, 1, 2 / 3),
    ("New\u00a0York", "New York", 1, 1, 1),
    ("Stra\u00dfe", "STRASSE", 0, 0, 0),
    ("\u0130stanbul", "istanbul", 0, 0, 0),
]


@pytest.mark.parametrize(("answer", "gold", "exact", "cover", "words"), PAIRS)
def test_the_checked_pairs(answer: str, gold: str, exact: float, cover: float, words: float) -> None:
    """A normaliser that differs from the one behind all published Search-R1 figures."""
    assert exact_match(answer, [gold]) == exact
    assert cover_exact_match(answer, [gold]) == cover
    assert f1(answer, [gold]) == pytest.approx(words)


def test_normalise_removes_articles_after_punctuation() -> None:
    """The other order: "A-ha" would lose its A and "the." keep its article."""
    assert normalise("The  A-ha, an\tU.S. band the.") == "aha us band"


def test_the_best_accepted_answer_counts_for_each_metric_alone() -> None:
    """The first or the last accepted answer alone, or the mean."""
    golds = ["Louis XIV", "the Sun King of France", "Louis"]
    assert exact_match("Sun King", golds) == 0.0
    assert f1("Sun King", golds) == pytest.approx(2 * 2 / (2 + 4))
    assert cover_exact_match("King Louis of France", golds) == 1.0


def test_an_accepted_answer_of_nothing_is_left_out_when_there_are_others() -> None:
    """An alias of punctuation alone that makes every text a cover match."""
    assert cover_exact_match("Lyon", ["Paris", "--"]) == 0.0
    assert exact_match("the", ["Paris", "--"]) == 0.0
    assert exact_match("the", ["A", "--"]) == 1.0


def test_no_answer_and_no_accepted_answer_score_zero() -> None:
    """An unanswered question paid because its accepted answer normalises to nothing, or a crash on an empty
    list.
    """
    for metric in (exact_match, f1, cover_exact_match):
        assert metric(None, ["The"]) == 0.0
        assert metric("Paris", []) == 0.0


words = st.lists(
    st.sampled_from(["the", "Paris", "paris", "A", "U.S.", "no", "é", "-", "", "Norway", " "]), max_size=4
).map(" ".join)


@settings(max_examples=300)
@given(words | st.text(max_size=12), st.lists(words | st.text(max_size=12), max_size=3))
def test_exact_match_is_at_most_f1_and_cover_match(answer: str, golds: list[str]) -> None:
    """A table in which exact match beats F1 (invariant 10)."""
    exact = exact_match(answer, golds)
    assert exact in (0.0, 1.0)
    assert exact <= f1(answer, golds) <= 1.0
    assert exact <= cover_exact_match(answer, golds) <= 1.0
    assert exact_match(answer, [*golds, answer]) == 1.0 or not normalise(answer)


@settings(max_examples=150)
@given(st.text(max_size=20))
def test_normalise_is_idempotent_on_plain_text(text: str) -> None:
    """A second pass that removes more: scores would depend on who normalised before."""
    once = normalise(text)
    assert normalise(once) == once or any(not char.isascii() for char in once)
