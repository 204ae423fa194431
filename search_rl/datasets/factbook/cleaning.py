"""From the Factbook's HTML fragments to plain text, and from long text to passages."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

_BREAKING_TAGS = ("br", "p", "li", "div")


def clean_html(fragment: str) -> str:
    """The text without tags and entities on one line; breaks become "; "."""
    text = html.unescape(fragment)
    if "<" in text:
        text = _strip_tags(text)
    text = re.sub(r"\s+", " ", html.unescape(text))
    text = re.sub(r"\s*;(?:\s*;)+", ";", text)
    text = re.sub(r"([:.,])\s*;", r"\1", text)
    return re.sub(r"\s+([;,.])(?=\s|$)", r"\1", text).strip(" ;-")


def split_passages(units: Iterable[str], *, max_words: int) -> Iterator[str]:
    """Units joined into texts of at most `max_words` words, broken at units, else clauses, else words."""
    held: list[str] = []
    num_held = 0
    for piece in (piece for unit in units for piece in _pieces(unit, max_words)):
        num_words = len(piece.split())
        if held and num_held + num_words > max_words:
            yield " ".join(held)
            held, num_held = [], 0
        held.append(piece)
        num_held += num_words
    if held:
        yield " ".join(held)


def _strip_tags(text: str) -> str:
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(text, "html.parser")
    for tag in soup.find_all(_BREAKING_TAGS):
        tag.insert_before("; ")
    return soup.get_text()


def _pieces(unit: str, max_words: int) -> Iterator[str]:
    if len(unit.split()) <= max_words:
        yield unit
        return
    for clause in re.split(r"(?<=[.;])\s+", unit):
        words = clause.split()
        for start in range(0, len(words), max_words):
            yield " ".join(words[start : start + max_words])
