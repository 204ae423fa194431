"""BM25: the formula, the traps of its library, and the refusal of folders that are not what they say."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.bm25 import BM25Index, TermSplitter, build_bm25, open_bm25
from retriever_server.errors import IndexFolderError
from retriever_server.index import build_index
from retriever_server.manifest import MANIFEST_FILE
from retriever_server.opening import check_index, open_retriever
from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.conftest import vouch_for, write_corpus

K1, B = 0.9, 0.4


def rows(index: BM25Index, query: str, *, top_k: int) -> list[int]:
    """Rows of the hits."""
    return [row for row, _ in index.search([query], top_k)[0]]


def bm25_by_hand(query: list[str], texts: list[list[str]]) -> list[float]:
    """Robertson's weights with Lucene's idf, straight from the formula; a score a text."""
    mean_length = sum(map(len, texts)) / len(texts)
    scores = [0.0] * len(texts)
    for term in query:
        num_with = sum(term in text for text in texts)
        idf = log(1 + (len(texts) - num_with + 0.5) / (num_with + 0.5))
        for row, text in enumerate(texts):
            count = text.count(term)
            scores[row] += idf * count / (count + K1 * (1 - B + B * len(text) / mean_length))
    return scores


def without_stopwords(text: list[str]) -> list[str]:
    """What is left of the words below."""
    return [word for word in text if word not in ("the", "is")]


words = st.sampled_from(["moon", "planet", "red", "water", "storm", "the", "is"])
texts = st.lists(st.lists(words, max_size=8), max_size=30)


@settings(max_examples=12)
@given(texts, st.lists(st.lists(words, max_size=4), max_size=8), st.integers(1, 12))
def test_search_agrees_with_the_formula(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[list[str]], queries: list[list[str]], top_k: int
) -> None:
    """Would catch other weights, rows off by one behind a text without terms, or a hit lost at the edge of k."""
    corpus = [*corpus, ["water"]]
    index = build_bm25(map(" ".join, corpus), tmp_path_factory.mktemp("formula") / "bm25")
    kept = [without_stopwords(text) for text in corpus]
    for query, hits in zip(queries, index.search([" ".join(query) for query in queries], top_k), strict=True):
        scores = bm25_by_hand(without_stopwords(query), kept)
        best = sorted((score for score in scores if score > 0), reverse=True)[:top_k]
        assert [score for _, score in hits] == pytest.approx(best, rel=1e-5)
        assert [scores[row] for row, _ in hits] == pytest.approx(best, rel=1e-5)
        assert len({row for row, _ in hits}) == len(hits)


@pytest.fixture(scope="module")
def planets_bm25(tmp_path_factory: pytest.TempPathFactory) -> BM25Index:
    """The six planets as they come back from disk."""
    folder = tmp_path_factory.mktemp("planets") / "bm25"
    build_bm25((passage.text for passage in PLANETS), folder)
    return open_bm25(folder, len(PLANETS))


@pytest.mark.parametrize(
    ("query", "row"), [("called storms", 4), ("MOONS named Phobos!", 3), ("hottest of planets", 1), ("liquids", 2)]
)
def test_queries_are_stemmed_as_passages_are(query: str, row: int, planets_bm25: BM25Index) -> None:
    """Would catch a query side without the stemmer, as in FlashRAG: `liquids` then finds nothing."""
    assert rows(planets_bm25, query, top_k=1) == [row]


def test_words_of_one_character_count() -> None:
    """Would catch the usual pattern of two characters, to which Vitamin A, Malcolm X and 7 are all the same."""
    assert TermSplitter()("Malcolm X and the 7 dwarfs") == ["malcolm", "x", "7", "dwarf"]


def test_a_query_without_a_known_word_finds_nothing(planets_bm25: BM25Index) -> None:
    """Would catch the library's k arbitrary passages of score 0, and answers shifted to the next query."""
    queries = ["xyzzy", "Phobos", "", "the of and", "?!", "Venus", "xyzzy"]
    assert [[row for row, _ in hits] for hits in planets_bm25.search(queries, 3)] == [[], [3], [], [], [], [1], []]
    assert planets_bm25.search([], 3) == []
    assert planets_bm25.search(["xyzzy"], 3) == [[]]


def test_more_hits_than_rows_are_fewer_hits(planets_bm25: BM25Index) -> None:
    """Would catch the library's ValueError, or rows without a shared word to make up the number."""
    assert sorted(rows(planets_bm25, "planet", top_k=1000)) == [0, 1, 4, 5]


@pytest.mark.parametrize("num_better", [0, 1, 3])
@pytest.mark.parametrize("top_k", [1, 5, 12, 60])
def test_equal_scores_come_in_row_order(num_better: int, top_k: int, tmp_path: Path) -> None:
    """Would catch the library's choice among equals, which is neither the first rows nor the same for another k."""
    twins = ["a comet passed"] * 40 + ["a comet comet passed"] * num_better
    index = build_bm25(twins, tmp_path / "bm25")
    expected = [*range(40, 40 + num_better), *range(40)]
    assert rows(index, "comet", top_k=top_k) == expected[:top_k]


def test_a_batch_finds_what_single_queries_find(planets_bm25: BM25Index) -> None:
    """Would catch answers that depend on which other queries and k share the search."""
    queries = ["red planet", "no moon", "moon", "called", "storm water"]
    together = planets_bm25.search(queries, 6)
    for query, hits in zip(queries, together, strict=True):
        for top_k in range(1, 7):
            assert planets_bm25.search([query], top_k) == [hits[:top_k]]


@pytest.fixture(scope="module")
def bm25_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index folder that has only BM25."""
    base = tmp_path_factory.mktemp("bm25")
    build_index(write_corpus(base / "corpus.jsonl", PLANETS), base / "index", None, with_bm25=True)
    return base / "index"


def test_a_folder_may_have_bm25_alone(bm25_folder: Path) -> None:
    """Would catch a BM25 index that needs an encoder, or searches text without titles."""
    retriever, manifest = open_retriever(bm25_folder, "bm25")
    assert manifest.parts == ("bm25",)
    assert manifest.versions.keys() >= {"bm25s", "PyStemmer", "numba"}
    assert [hit.passage for hit in retriever.search(["Deimos"], top_k=3)[0]] == [PLANETS[3]]
    assert check_index(bm25_folder) == manifest


def edit(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        assert old in data
        (folder / name).write_bytes(data.replace(old, new))

    return damage


def point_outside(folder: Path) -> None:
    path = folder / "bm25" / "indices.csc.index.npy"
    np.save(path, np.full_like(np.load(path), 10**9))


def scribble(folder: Path) -> None:
    path = folder / "bm25" / "data.csc.index.npy"
    path.write_bytes(b"\0" * path.stat().st_size)


def drop_vocabulary(folder: Path) -> None:
    (folder / "bm25" / "vocab.index.json").unlink()


def reverse_rows(folder: Path) -> None:
    """As another version of a library would: all is in bounds, and other passages are found."""
    path = folder / "bm25" / "indices.csc.index.npy"
    np.save(path, np.load(path)[::-1].copy())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_vocabulary, "vocab.index.json: missing"),
        (scribble, "not a BM25 index"),
        (point_outside, "rows outside the corpus"),
        (reverse_rows, "of 1[0-9] passages that it found"),
        (edit(MANIFEST_FILE, b'"stemmer": "english"', b'"stemmer": "porter"'), "stemmer was 'porter' and is 'english'"),
        (edit(MANIFEST_FILE, b'"into",', b""), "stopwords was"),
        (edit(MANIFEST_FILE, b'"k1": 0.9', b'"k1": 1.2'), "k1 was 1.2 and is 0.9"),
        (edit("bm25/params.index.json", b'"k1": 0.9', b'"k1": 1.2'), "k1, b, passages are .*1.2"),
    ],
)
def test_another_make_or_a_damaged_part_is_refused(
    damage: Callable[[Path], None], message: str, bm25_folder: Path, tmp_path: Path
) -> None:
    """Would catch a query side that differs from the index, silent and worse, or reads beyond an array."""
    folder = tmp_path / "index"
    shutil.copytree(bm25_folder, folder)
    damage(folder)
    vouch_for(folder)
    with pytest.raises(IndexFolderError, match=message) as caught:
        open_retriever(folder, "bm25")
    assert re.search(str(folder), str(caught.value)) and "\n" not in str(caught.value)


def test_a_corpus_without_words_is_refused(tmp_path: Path) -> None:
    """Would catch a traceback from the library, or an index that can never find anything."""
    corpus = write_corpus(tmp_path / "c.jsonl", [{"id": "1", "text": "the ... of"}])
    with pytest.raises(IndexFolderError, match="no passage has a word"):
        build_index(corpus, tmp_path / "index", None, with_bm25=True)
    assert not (tmp_path / "index").exists()
