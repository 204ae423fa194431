"""Encoders: which prefixes a name gets, what is refused, and the embedded model itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retriever_server.encoders import PREFIXES, Prefixes, SentenceEncoder, normalised, passage_text, prefixes_of
from retriever_server.errors import EncoderError
from retriever_server.index import build_index
from retriever_server.opening import open_retriever
from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.conftest import write_corpus


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("intfloat/e5-base-v2", Prefixes("query: ", "passage: ")),
        ("/models/e5-base-v2", Prefixes("query: ", "passage: ")),
        ("BAAI/bge-base-en-v1.5", Prefixes("Represent this sentence for searching relevant passages: ", "")),
        ("all-MiniLM-L6-v2", Prefixes()),
        ("someone/my-e5-like-model", Prefixes()),
        ("BAAI/bge-m3", Prefixes()),
    ],
)
def test_prefixes_go_by_exact_name(name: str, expected: Prefixes) -> None:
    """Would catch the reference's substring test, which gives a prefix to one side only."""
    assert prefixes_of(name, {}) == expected


def test_a_model_outside_the_table_may_bring_its_own_prompts() -> None:
    """Would catch prompts of the model's own configuration that are dropped, or that win over the table."""
    own = {"query": "q: ", "document": "d: "}
    assert prefixes_of("someone/model", own) == Prefixes("q: ", "d: ")
    assert prefixes_of("intfloat/e5-base-v2", own) == PREFIXES["e5-base-v2"]


def test_rows_are_scaled_to_length_one_and_zeros_stay() -> None:
    """Would catch a division by zero: NaN vectors match nothing, in silence."""
    rows = normalised(np.array([[3, 4], [0, 0]], dtype=np.float32))
    assert rows.tolist() == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
    assert rows.dtype == np.float32


def test_a_folder_that_is_not_there_is_told() -> None:
    """Would catch a mistyped folder that is looked for on the hub."""
    with pytest.raises(EncoderError, match="no such folder"):
        SentenceEncoder("./no/such/folder")


@pytest.mark.slow
def test_a_folder_that_is_no_model_is_told(tmp_path: Path) -> None:
    """Would catch a traceback in place of one line."""
    with pytest.raises(EncoderError, match="cannot be loaded") as caught:
        SentenceEncoder(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_embedded_model_finds_what_is_meant(tmp_path: Path) -> None:
    """Would catch wrong pooling, missing normalisation, or passages in another order than their vectors."""
    encoder = SentenceEncoder("all-MiniLM-L6-v2")
    build_index(write_corpus(tmp_path / "c.jsonl", PLANETS), tmp_path / "index", encoder)
    retriever, manifest = open_retriever(tmp_path / "index")
    assert manifest.dense is not None
    assert (manifest.dense.encoder.dimension, manifest.dense.encoder.max_length_tokens) == (384, 256)
    queries = ["where is there water to drink?", "the dwarf planet", "the biggest one", ""]
    found = [hits[0].passage.id for hits in retriever.search(queries, top_k=1)]
    assert found[:3] == ["earth", "pluto", "jupiter"]
    for query, hits in zip(queries, retriever.search(queries, top_k=3), strict=True):
        (alone,) = retriever.search([query], top_k=3)
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=0.01)


@pytest.mark.slow
def test_half_precision_keeps_the_meaning() -> None:
    """Would catch a compute type that changes what is found: cosine to float32 > 0.99, same nearest text."""
    import torch
    from sentence_transformers import SentenceTransformer

    encoder = SentenceEncoder("all-MiniLM-L6-v2")
    reference = SentenceTransformer(encoder.location, model_kwargs={"dtype": torch.float32})
    texts = [passage_text(passage) for passage in PLANETS] + [passage.text[:20] for passage in PLANETS]
    ours_ND, theirs_ND = encoder.encode_passages(texts), normalised(reference.encode(texts))
    assert np.linalg.norm(ours_ND, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-5)
    assert (ours_ND * theirs_ND).sum(axis=1).min() > 0.99
    nearest = [(vectors_ND[6:] @ vectors_ND[:6].T).argmax(axis=1).tolist() for vectors_ND in (ours_ND, theirs_ND)]
    assert nearest[0] == nearest[1] == [0, 1, 2, 3, 4, 5]
