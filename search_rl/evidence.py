"""What a question's evidence is, and which passages are of it: by passage id, or by the titles of articles.

Questions made from a corpus name passages of it. The published multi-hop sets name Wikipedia articles instead, which a
corpus may have cut into many passages: such an article counts as found by any passage under its title, so that figures
by title are an upper bound of those by passage.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence

from search_rl.types import Passage, Question

_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212"), "-")
_QUOTES = {ord("\u2018"): "'", ord("\u2019"): "'", ord("\u201c"): '"', ord("\u201d"): '"'}
_FOLDED = {**_DASHES, **_QUOTES, ord("_"): " "}


def title_key(title: str) -> str:
    """The form in which titles are compared, empty for a title of nothing.

    HTML entities are read, compatibility forms, dashes, curly quotes and case are folded, underscores are spaces, the
    quotes around a whole title go (wiki-18 has them), and spaces are single. Accents and what stands in parentheses
    stay: they tell articles apart.
    """
    text = unicodedata.normalize("NFKC", html.unescape(title)).translate(_FOLDED).casefold()
    text = " ".join(text.split())
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2
    return text[1:-1].strip() if is_quoted else text


def evidence_of(question: Question) -> frozenset[str]:
    """What is to be found: the passage ids, or where none are named the keys of the titles; empty for no evidence."""
    if question.evidence_ids:
        return frozenset(question.evidence_ids)
    return frozenset(filter(None, map(title_key, question.evidence_titles)))


def evidence_ranks(question: Question, passages: Sequence[Passage]) -> dict[str, int]:
    """Of each piece of the evidence that is among the passages the place, from 1, of the first that is of it."""
    wanted = evidence_of(question)
    ranks: dict[str, int] = {}
    if not wanted:
        return ranks
    for rank, passage in enumerate(passages, start=1):
        key = passage.id if question.evidence_ids else title_key(passage.title)
        if key in wanted:
            ranks.setdefault(key, rank)
    return ranks


def evidence_among(question: Question, passages: Iterable[Passage]) -> frozenset[str]:
    """The pieces of the question's evidence that the passages hold."""
    return frozenset(evidence_ranks(question, tuple(passages)))
