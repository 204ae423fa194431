"""BM25 by bm25s, in Lucene's variant: the `bm25` folder of an index. Texts in, rows out.

One function splits passages and queries alike into terms. A search runs on its caller's thread, outside Python's
lock; numba's own pool would end the process when two searches meet in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from bm25s.numba import retrieve_utils
from bm25s.stopwords import STOPWORDS_EN
from numpy.typing import NDArray

from retriever_server.errors import IndexFolderError
from retriever_server.manifest import TermSpec
from retriever_server.schema import Hits

BM25_FOLDER = "bm25"
# k1 and b are Pyserini's, which Search-R1's own BM25 server runs with.
TERMS = TermSpec(
    token_pattern=r"(?u)\w+", stopwords=tuple(STOPWORDS_EN), stemmer="english", method="lucene", k1=0.9, b=0.4
)
_CHUNK_PASSAGES = 1024
# Hits more than asked: where they reach a lower score, the order of equal scores at the edge is known.
_TIE_MARGIN = 8

# Compiling the search takes seconds, at each start of a process; where no cache can be written it does so again.
with suppress(RuntimeError):
    retrieve_utils._retrieve_internal_jitted_serial.enable_caching()


class NoTermsError(ValueError):
    """Not one text has a term."""


class TermSplitter:
    """Text into stemmed terms; for one thread at a time, as the stemmer is."""

    def __init__(self) -> None:
        self._words = re.compile(TERMS.token_pattern).findall
        self._stopwords = frozenset(TERMS.stopwords)
        self._stemmer = Stemmer.Stemmer(TERMS.stemmer, 0)  # Its cache takes longer than stemming does.

    def __call__(self, text: str) -> list[str]:
        """The terms in order, stopwords left out; perhaps none."""
        words = [word for word in self._words(text.lower()) if word not in self._stopwords]
        terms: list[str] = self._stemmer.stemWords(words)
        return terms


class BM25Index:
    """Exact BM25 search; the scores of all terms were computed when it was built."""

    def __init__(self, weights: Any) -> None:
        self._weights, self._split = weights, TermSplitter()

    def search(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """Per query at most `top_k` (row, score) that share a term with it, best first, equal scores by row."""
        num_rows = self._weights.scores["num_docs"]
        terms = [self._weights.get_tokens_ids(self._split(query)) for query in queries]
        asked = [ids for ids in terms if ids]
        num_hits = min(top_k, num_rows)
        if not asked or num_hits <= 0:
            return [[] for _ in queries]
        rows_QK, scores_QK = self._weights.retrieve(
            asked, k=min(num_hits + _TIE_MARGIN, num_rows), n_threads=1, show_progress=False
        )
        found = iter([self._best(*query, num_hits) for query in zip(asked, rows_QK, scores_QK, strict=True)])
        return [next(found) if ids else [] for ids in terms]

    def _best(self, ids: list[int], rows_K: NDArray[Any], scores_K: NDArray[np.float32], num_hits: int) -> Hits:
        """The first `num_hits`; bm25s itself keeps any of the rows whose score equals the lowest it returns."""
        edge = scores_K[num_hits - 1]
        if edge == scores_K[-1] > 0 and len(rows_K) < self._weights.scores["num_docs"]:
            scores_N = self._weights.get_scores_from_ids(ids)
            rows_K = np.flatnonzero(scores_N >= edge)
            scores_K = scores_N[rows_K]
        is_hit_K = scores_K > 0
        rows_K, scores_K = rows_K[is_hit_K], scores_K[is_hit_K]
        order_K = np.lexsort((rows_K, -scores_K))[:num_hits]
        return list(zip(rows_K[order_K].tolist(), scores_K[order_K].tolist(), strict=True))


def build_bm25(texts: Iterable[str], folder: Path, *, progress: Callable[[int], None] | None = None) -> BM25Index:
    """The index of the texts, after it was written to `folder`; all their terms are kept in memory meanwhile.

    `progress(newly_done)` counts texts. Raises NoTermsError.
    """
    split = TermSplitter()
    vocabulary: dict[str, int] = {}
    term_ids: list[list[int]] = []
    for text in texts:
        term_ids.append([vocabulary.setdefault(term, len(vocabulary)) for term in split(text)])
        if progress is not None and len(term_ids) % _CHUNK_PASSAGES == 0:
            progress(_CHUNK_PASSAGES)
    if progress is not None and len(term_ids) % _CHUNK_PASSAGES:
        progress(len(term_ids) % _CHUNK_PASSAGES)
    if not vocabulary:
        raise NoTermsError
    weights = bm25s.BM25(method=TERMS.method, k1=TERMS.k1, b=TERMS.b, backend="numba", csc_backend="scipy")
    weights.index((term_ids, vocabulary), create_empty_token=False, show_progress=False)
    weights.save(folder, show_progress=False)
    # Mapped, as it will be served: arrays in memory would have the search compiled once more.
    return open_bm25(folder, len(term_ids))


def open_bm25(folder: Path, num_passages: int) -> BM25Index:
    """The memory-mapped index of a `bm25` folder; seconds when it is large. Raises IndexFolderError."""
    try:
        weights = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        found = (weights.method, weights.k1, weights.b, weights.scores["num_docs"])
        _check_arrays(weights.scores, len(weights.vocab_dict))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise IndexFolderError(f"{folder}: not a BM25 index, or a damaged one ({reason}); build it again") from error
    expected = (TERMS.method, TERMS.k1, TERMS.b, num_passages)
    if found != expected:
        raise IndexFolderError(
            f"{folder}: method, k1, b, passages are {found}, but the manifest says {expected}; build it again"
        )
    return BM25Index(weights)


def _check_arrays(scores: dict[str, Any], num_terms: int) -> None:
    """ValueError unless all rows and bounds lie inside: numba reads where they point. Reads the rows ahead, too."""
    bounds, rows = scores["indptr"], scores["indices"]
    if len(bounds) != num_terms + 1 or bounds[0] != 0 or bounds[-1] != len(rows) or np.any(np.diff(bounds) < 0):
        raise ValueError("the bounds of the terms do not fit")
    if len(rows) != len(scores["data"]) or rows.min() < 0 or rows.max() >= scores["num_docs"]:
        raise ValueError("rows outside the corpus")
