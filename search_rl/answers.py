"""How an answer is compared with the accepted ones: SQuAD's normaliser and metrics, which are Search-R1's
too.

Each metric is 0.0 to 1.0, the best over the accepted answers, and 0.0 for no answer. On every row exact match
is at most F1 and at most cover exact match. An accepted answer that normalises to nothing ("The The") is left
out, as SQuAD 2.0 does, unless all do: then only an answer that normalises to nothing matches. Search-R1's own
cover match counts such an answer as found in any text, and SQuAD 1.1's F1 counts two empty texts as
different; ours differ there.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """`text` in lower case, without ASCII punctuation, then without a, an and the, with single spaces."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str | None, golden_answers: Iterable[str]) -> float:
    """1.0 when the normalised texts are equal."""
    return _best(answer, golden_answers, lambda mine, gold: float(mine == gold))


def cover_exact_match(answer: str | None, golden_answers: Iterable[str]) -> float:
    """1.0 when the normalised accepted answer is inside the normalised answer, even inside a word."""
    return _best(answer, golden_answers, lambda mine, gold: float(gold in mine if gold else not mine))


def f1(answer: str | None, golden_answers: Iterable[str]) -> float:
    """The harmonic mean of precision and recall over bags of words; yes and no have no own rule."""
    return _best(answer, golden_answers, _word_f1)


def _best(answer: str | None, golden_answers: Iterable[str], similarity: Callable[[str, str], float]) -> float:
    """The best similarity of the normalised answer to a normalised accepted answer."""
    if answer is None:
        return 0.0
    golds = [normalise(gold) for gold in golden_answers]
    mine = normalise(answer)
    return max((similarity(mine, gold) for gold in [gold for gold in golds if gold] or golds), default=0.0)


def _word_f1(mine: str, gold: str) -> float:
    my_words, gold_words = mine.split(), gold.split()
    if not my_words or not gold_words:
        return float(my_words == gold_words)
    num_shared = sum((Counter(my_words) & Counter(gold_words)).values())
    return 2 * num_shared / (len(my_words) + len(gold_words))
