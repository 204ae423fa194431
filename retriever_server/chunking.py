"""Long texts in, passages' texts out: cut between sentences, up to a number of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sentencex import segment

DEFAULT_CHUNK_WORDS = 100
"""As in the passages of wiki-18 (Karpukhin et al., arXiv 2004.04906), which end within sentences."""

# A sign of Chinese, Japanese or Korean counts as a word, and so do each 40 letters of a run without a space.
_SIGNS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"\s*(?:[{_SIGNS}]|[^\s{_SIGNS}]{{1,40}})\s*")


def chunk(paragraphs: Iterable[str], max_words: int) -> Iterator[str]:
    """Texts of at most `max_words` words, which together hold each word once and in order.

    They end where a sentence does; only one that is longer itself is cut, between words. Paragraphs may share a
    chunk, and are then separated by a line break.
    """
    kept: list[str] = []
    num_words = 0
    for sentence in _sentences(paragraphs, max_words):
        size = count_words(sentence)
        if num_words + size > max_words:
            yield "".join(kept).strip()
            kept, num_words = [], 0
        kept.append(sentence)
        num_words += size
    if num_words:
        yield "".join(kept).strip()


def count_words(text: str) -> int:
    """Words of a text, as `chunk` counts them."""
    return len(_WORD.findall(text))


def _sentences(paragraphs: Iterable[str], max_words: int) -> Iterator[str]:
    """Sentences with the spaces behind them, each of at most `max_words` words."""
    for paragraph in paragraphs:
        for sentence in segment("en", paragraph):
            words = _WORD.findall(sentence)
            if len(words) <= max_words:
                yield sentence
                continue
            yield from ("".join(words[start : start + max_words]) for start in range(0, len(words), max_words))
        yield "\n"
