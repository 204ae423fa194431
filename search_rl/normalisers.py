"""The forms in which scorers compare texts. The order of the steps is part of each.

None maps number words, dates, plurals or full-width forms, none strips accents, and none folds case further than
`str.lower`.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable

Normaliser = Callable[[str], str]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACED_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4`", " "))
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def squad(text: str) -> str:
    """`text` in lower case, without ASCII punctuation, then without a, an and the, with single spaces.

    SQuAD's (Rajpurkar et al. 2016, 1606.05250), taken over by HotpotQA, MuSiQue, FlashRAG and Search-R1.
    """
    return _without_articles(text.lower().translate(_PUNCTUATION))


def nq_open(text: str) -> str:
    """`squad` after Unicode's NFD, so that composed and decomposed accents are equal (ORQA, Lee et al. 2019,
    1906.00300).

    As there, a letter "a" that carries an accent and stands alone loses the letter: the accent bounds the article.
    """
    return squad(unicodedata.normalize("NFD", text))


def triviaqa(text: str) -> str:
    """Like `squad`, but a punctuation mark becomes a space, and two curly quotes and the acute are marks too
    (Joshi et al. 2017, 1705.03551).
    """
    return _without_articles(text.lower().translate(_SPACED_PUNCTUATION))


def raw(text: str) -> str:
    """`text` as it is."""
    return text


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text).split())
