"""Evidence by passage and by title."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.evidence import evidence_among, evidence_of, evidence_ranks, title_key
from search_rl.types import Passage, Question


@pytest.mark.parametrize(
    ("title", "other"),
    [
        ("Simon &amp; Schuster", "Simon & Schuster"),
        ('"Peru"', "Peru"),
        ("Green_(Steve_Hillage_album)", "Green (Steve Hillage album)"),
        ("1998\u201399 Serie A", "1998-99 Serie A"),
        ("Ocean\u2019s Eleven", "Ocean's Eleven"),
        ("  New \u00a0York ", "new york"),
        ("Beyonce\u0301", "Beyonc\u00e9"),
        ('"Weird Al" Yankovic', "\u201cWeird Al\u201d Yankovic"),
    ],
)
def test_spellings_of_one_title(title: str, other: str) -> None:
    """Evidence that counts as not found because a corpus writes its title another way."""
    assert title_key(title) == title_key(other) != ""


@pytest.mark.parametrize(
    ("title", "other"),
    [
        ("Green (color)", "Green (Steve Hillage album)"),
        ("The Office", "Office"),
        ("Beyonc\u00e9", "Beyonce"),
        ("Weird Al", '"Weird Al" Yankovic'),
        ('"A" and "B"', 'A" and "B'),
    ],
)
def test_titles_of_two_articles(title: str, other: str) -> None:
    """The answer scorers' normaliser, under which an album is found when a colour was read."""
    assert title_key(title) != title_key(other)


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_quotes_of_wiki18_change_no_title(title: str) -> None:
    """A title that is lost or doubled when a corpus puts it in quotes."""
    if '"' not in title_key(title):
        assert title_key(f'"{title}"') == title_key(title)


CUT = [
    Passage("1", "Lima", "Lima is long."),
    Passage("2", '"Peru"', "Peru, first part."),
    Passage("3", "Peru", "Peru, second part."),
]


def test_a_title_is_found_once_and_first() -> None:
    """An article in three passages counted three times: a recall above 1, or its last place taken for its first."""
    question = Question("q", "?", ("x",), "musique", evidence_titles=("Peru", "PERU", "Chile", " "))
    assert evidence_of(question) == {"peru", "chile"}
    assert evidence_ranks(question, CUT) == {"peru": 2}


def test_passages_come_before_titles() -> None:
    """A passage of the right article taken for the very passage that a question was made from."""
    question = Question("q", "?", ("x",), "demo", evidence_ids=("3",), evidence_titles=("Peru",))
    assert evidence_of(question) == {"3"}
    assert not evidence_among(question, CUT[:2])
    assert evidence_among(question, CUT) == {"3"}


def test_no_title_is_no_evidence() -> None:
    """Passages without a title that are evidence for every question."""
    question = Question("q", "?", ("x",), "demo", evidence_titles=("", '""'))
    assert evidence_of(question) == frozenset()
    assert evidence_ranks(question, [Passage("1", "", "text")]) == {}
