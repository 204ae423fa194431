"""Reranking: every pair gets its own score, whoever shares its batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_server.encoders import passage_text
from retriever_server.errors import EncoderError
from retriever_server.opening import open_retriever
from retriever_server.rerank import CrossEncoderReranker, RerankingRetriever
from retriever_server.schema import Passage, ScoredPassage
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder


class FindsNamesakes:
    """For the query `n` finds the passages `n-0` to `n-(n-1)`: another number for each query, none for `0`."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        return [
            [ScoredPassage(Passage(f"{query}-{k}", "", f"{query} {k}"), 1 / (k + 1)) for k in range(int(query))][:top_k]
            for query in queries
        ]


class PrefersTheLast:
    """Scores a passage by its number when the query is its own; any other pair fails the test."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """See Reranker."""
        owners = [(query, *text.split()) for query, text in pairs]
        assert all(query == owner for query, owner, _ in owners)
        return [float(number) for _, _, number in owners]


@given(st.lists(st.integers(0, 30).map(str), max_size=8), st.integers(1, 30))
def test_every_pair_is_scored_with_its_own_passage(queries: list[str], top_k: int) -> None:
    """Would catch Search-R1's reranker: it pairs queries with each other's passages and loses those without any."""
    found = RerankingRetriever(FindsNamesakes(), PrefersTheLast()).search(queries, top_k=top_k)
    for query, hits in zip(queries, found, strict=True):
        best = list(reversed(range(min(int(query), 20))))[:top_k]
        assert [(hit.passage.id, hit.score) for hit in hits] == [(f"{query}-{k}", k) for k in best]


def test_equal_scores_stay_in_the_order_of_the_retriever() -> None:
    """Would catch a reranker that shuffles what it cannot tell apart."""

    class Indifferent:
        def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
            return [0.5] * len(pairs)

    (hits,) = RerankingRetriever(FindsNamesakes(), Indifferent()).search(["5"], top_k=3)
    assert [hit.passage.id for hit in hits] == ["5-0", "5-1", "5-2"]


@pytest.fixture(scope="module")
def cross_encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two untrained cross-encoders of 32 dimensions, by their number of outputs."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    base = tmp_path_factory.mktemp("cross-encoders")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (base / "vocab.txt").write_text("\n".join(words))
    for num_outputs in (1, 3):
        config = BertConfig(
            vocab_size=len(words),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=num_outputs,
            initializer_range=0.5,
        )
        BertForSequenceClassification(config).save_pretrained(base / str(num_outputs))
        BertTokenizer(str(base / "vocab.txt")).save_pretrained(base / str(num_outputs))
    return {num_outputs: base / str(num_outputs) for num_outputs in (1, 3)}


@pytest.mark.slow
def test_a_cross_encoder_orders_by_what_it_says_of_each_pair(
    cross_encoders: dict[int, Path], planets_folder: Path
) -> None:
    """Would catch scores that lie with another pair once pairs are sorted by length and batched."""
    name = str(cross_encoders[1])
    retriever, _ = open_retriever(planets_folder, rerank=name, load_encoder=lambda _: BagOfWordsEncoder())
    queries = ["red planet", "moon", "which one has liquid water and a single moon", "moon"]
    model = CrossEncoderReranker(name)
    for query, hits in zip(queries, retriever.search(queries, top_k=6), strict=True):
        alone = {passage.id: model.score([(query, passage_text(passage))])[0] for passage in PLANETS}
        assert len(set(alone.values())) == 6
        assert {hit.passage.id: hit.score for hit in hits} == pytest.approx(alone, abs=1e-4)
        assert [hit.passage.id for hit in hits] == sorted(alone, key=lambda id: -alone[id])


@pytest.mark.slow
def test_a_model_that_cannot_rerank_is_refused(cross_encoders: dict[int, Path]) -> None:
    """Would catch a classifier whose first class is taken for relevance, or a traceback for a mistyped folder."""
    with pytest.raises(EncoderError, match="has 3 outputs, one is needed"):
        CrossEncoderReranker(str(cross_encoders[3]))
    with pytest.raises(EncoderError, match="no such folder"):
        CrossEncoderReranker("./no-such-model")
