"""Recall against exact search, and which exact search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from retriever_server.bench.synthetic import SyntheticEncoder, synthetic_queries, write_synthetic_index
from retriever_server.encoders import normalised
from retriever_server.errors import IndexFolderError
from retriever_server.index import build_index
from retriever_server.recall import IndexAnswers, answer_all
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus

QUERIES = synthetic_queries(40)


def answered(folder: Path, exact_folder: Path | None = None) -> IndexAnswers:
    """The answers of a synthetic folder, with recall at 1 and 10."""
    return answer_all(
        folder,
        "dense",
        QUERIES,
        (1, 10),
        with_recall=True,
        load_encoder=lambda name: SyntheticEncoder(16),
        exact_folder=exact_folder,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same 2,000 passages: flat, and lists of which few are looked into."""
    base = tmp_path_factory.mktemp("recall")
    for name, kind in (("flat", "flat"), ("lists", "IVF64,Flat")):
        write_synthetic_index(base / name, num_passages=2000, dimension=16, kind=kind)
    return {name: base / name for name in ("flat", "lists")}


def test_flat_is_exact_and_lists_are_not(folders: dict[str, Path]) -> None:
    """Would catch an index that is compared with itself, or with the search's own errors."""
    flat = answered(folders["flat"])
    assert flat.recalls == {1: [1.0] * 40, 10: [1.0] * 40}
    lists = answered(folders["lists"], exact_folder=folders["flat"])
    assert lists.recalls is not None
    exact_ids = [{hit.passage.id for hit in hits} for hits in flat.answers]
    shared = [
        len(ids & {hit.passage.id for hit in hits}) / 10 for ids, hits in zip(exact_ids, lists.answers, strict=True)
    ]
    assert list(lists.recalls[10]) == shared
    assert 0.2 < sum(shared) / 40 < 1.0


class RoundingEncoder(SyntheticEncoder):
    """Rounds a query as its batch is long: bfloat16 on a processor does, in a smaller way."""

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        vectors_ND = super().encode_queries(texts)
        return normalised(np.round(vectors_ND * (len(texts) % 7 + 2)).astype(np.float32) + 1e-3)


def test_exact_search_is_for_the_queries_as_they_were_encoded(folders: dict[str, Path]) -> None:
    """A flat index missed one passage in a thousand: exact search had its queries encoded in one batch of all."""
    queries = synthetic_queries(300)
    found = answer_all(
        folders["flat"],
        "dense",
        queries,
        (5,),
        with_recall=True,
        load_encoder=lambda name: RoundingEncoder(16),
    )
    assert found.recalls == {5: [1.0] * 300}


def test_without_a_flat_folder_the_passages_are_encoded_anew(folders: dict[str, Path]) -> None:
    """Would catch a recall against the vectors of the very index that is judged."""
    assert answered(folders["lists"]).recalls == answered(folders["lists"], exact_folder=folders["flat"]).recalls


def test_an_exact_folder_that_is_not_one_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    """Would catch recall against another corpus, another model, or an approximation."""
    with pytest.raises(IndexFolderError, match="not a flat index"):
        answered(folders["flat"], exact_folder=folders["lists"])
    write_synthetic_index(tmp_path / "small", num_passages=20, dimension=16)
    with pytest.raises(IndexFolderError, match="another corpus"):
        answered(folders["flat"], exact_folder=tmp_path / "small")
    write_synthetic_index(tmp_path / "wide", num_passages=2000, dimension=8)
    with pytest.raises(IndexFolderError, match="another encoder: dimension"):
        answered(folders["flat"], exact_folder=tmp_path / "wide")


def test_bm25_alone_has_no_recall(tmp_path: Path) -> None:
    """Would catch a traceback where there is no vector."""
    build_index(write_corpus(tmp_path / "corpus.jsonl", PLANETS), tmp_path / "index", None, with_bm25=True)
    with pytest.raises(IndexFolderError, match="no dense part"):
        answer_all(tmp_path / "index", "bm25", ["moon"], (1,), with_recall=True)
    found = answer_all(
        tmp_path / "index", "bm25", ["Phobos"], (1,), with_recall=False, load_encoder=lambda name: BagOfWordsEncoder()
    )
    assert found.recalls is None and found.answers[0][0].passage.id == "mars" and found.queries_per_second > 0
