"""The ways to search behind one seam: what holds for all of them, and what each is for."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.app import create_app
from retriever_server.fusion import reciprocal_rank_fusion
from retriever_server.index import build_index
from retriever_server.opening import open_retriever
from retriever_server.retrievers import RandomRetriever, Retriever
from retriever_server.schema import RETRIEVER_NAMES, Passage, RetrieverName
from retriever_server.store import PassageStore
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import post, write_corpus


def must_not_load(name: str) -> BagOfWordsEncoder:
    """For retrievers that need no model."""
    raise AssertionError("the model was loaded")


@pytest.fixture(scope="session")
def retrievers(hybrid_folder: Path) -> dict[RetrieverName, Retriever]:
    """All of them over the six planets."""
    return {
        name: open_retriever(
            hybrid_folder,
            name,
            load_encoder=(lambda _: BagOfWordsEncoder()) if name in ("dense", "hybrid") else must_not_load,
        )[0]
        for name in RETRIEVER_NAMES
    }


def ids(retriever: Retriever, query: str, *, top_k: int) -> list[str]:
    """Ids of the hits."""
    return [hit.passage.id for hit in retriever.search([query], top_k=top_k)[0]]


words = st.sampled_from(["moon", "moons", "planet", "red", "water", "storm", "the", "xyzzy", "Phobos"])
queries = st.lists(st.lists(words, max_size=5).map(" ".join), max_size=12)


@pytest.mark.parametrize("name", RETRIEVER_NAMES)
@settings(max_examples=25)
@given(asked=queries, top_k=st.integers(1, 9), more=st.integers(0, 200))
def test_an_answer_is_the_query_s_own(
    name: RetrieverName, asked: list[str], top_k: int, more: int, retrievers: dict[RetrieverName, Retriever]
) -> None:
    """Would catch answers that depend on the other queries of a batch, on the largest k in it, or repeat a passage."""
    together = retrievers[name].search(asked, top_k=top_k + more)
    assert len(together) == len(asked)
    for query, hits in zip(asked, together, strict=True):
        found = [hit.passage.id for hit in hits]
        assert len(set(found)) == len(found) <= len(PLANETS)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert ids(retrievers[name], query, top_k=top_k) == found[:top_k]


def test_random_passages_stay_the_same_for_a_query(hybrid_folder: Path) -> None:
    """Would catch draws that depend on the process (`hash` is salted), on the batch, or not on the query."""
    random, _ = open_retriever(hybrid_folder, "random", load_encoder=must_not_load)
    assert ids(random, "which planet is red?", top_k=3) == ["mercury", "jupiter", "pluto"]
    assert ids(random, "which planet is red", top_k=3) != ids(random, "which planet is red?", top_k=3)
    assert sorted(ids(random, "all", top_k=50)) == sorted(passage.id for passage in PLANETS)
    other = RandomRetriever(PassageStore(hybrid_folder), seed=1)
    assert ids(other, "which planet is red?", top_k=3) != ["mercury", "jupiter", "pluto"]


def test_random_passages_reach_the_whole_corpus(hybrid_folder: Path) -> None:
    """Would catch a draw that never gives the first or the last passage, or prefers one."""
    random = RandomRetriever(PassageStore(hybrid_folder))
    first = [hits[0].passage.id for hits in random.search([f"query {n}" for n in range(600)], top_k=1)]
    assert all(60 <= first.count(passage.id) <= 140 for passage in PLANETS)


def test_hybrid_fuses_what_its_two_halves_find(retrievers: dict[RetrieverName, Retriever]) -> None:
    """Would catch a half that is asked for less than the whole depth, or fused by its scores."""
    for query in ("the red planet with two moons", "storms", "xyzzy", "water on the planet Mars"):
        halves = [ids(retrievers[name], query, top_k=6) for name in ("dense", "bm25")]
        rows = [[[passage.id for passage in PLANETS].index(id) for id in half] for half in halves]
        (hits,) = retrievers["hybrid"].search([query], top_k=6)
        found = [(PLANETS.index(hit.passage), hit.score) for hit in hits]
        assert found == reciprocal_rank_fusion(rows)


def test_hybrid_does_not_depend_on_the_largest_k(tmp_path: Path) -> None:
    """Would catch a depth that grows with k: a query's first hits then change with the requests beside it."""
    draw = Random(0)
    vocabulary = ["moon", "planet", "red", "water", "storm", "ring", "ice", "dust"]
    passages = [Passage(str(n), "", " ".join(draw.choices(vocabulary, k=draw.randint(3, 20)))) for n in range(500)]
    build_index(write_corpus(tmp_path / "c.jsonl", passages), tmp_path / "index", BagOfWordsEncoder(), with_bm25=True)
    hybrid, _ = open_retriever(tmp_path / "index", "hybrid", load_encoder=lambda _: BagOfWordsEncoder())
    for query in (" ".join(draw.choices(vocabulary, k=3)) for _ in range(20)):
        longest = ids(hybrid, query, top_k=1000)
        assert 200 <= len(longest) <= 400
        for top_k in (1, 10, 60, 200):
            assert ids(hybrid, query, top_k=top_k) == longest[:top_k]


def test_hybrid_finds_by_word_what_its_encoder_cannot_tell_apart(tmp_path: Path) -> None:
    """Would catch a fusion in which one half cannot be heard: here dense alone finds the needle last."""
    hay = [Passage(f"hay {n}", "", "a straw in the stack") for n in range(60)]
    needle = Passage("needle", "", "a needle between many other things that lie in this old barn")
    corpus = write_corpus(tmp_path / "c.jsonl", [*hay, needle])
    build_index(corpus, tmp_path / "index", BagOfWordsEncoder(), with_bm25=True)

    def find(name: RetrieverName) -> list[str]:
        retriever, _ = open_retriever(tmp_path / "index", name, load_encoder=lambda _: BagOfWordsEncoder())
        return ids(retriever, "straw in the stack straw in the stack needle", top_k=61)

    assert find("dense")[-1] == "needle" == find("bm25")[0]
    assert find("hybrid").index("needle") < 60


def test_empty_finds_nothing_over_the_wire(retrievers: dict[RetrieverName, Retriever]) -> None:
    """Would catch a control that is refused, or answered with fewer lists than queries."""
    app: FastAPI = create_app(retrievers["empty"])
    (response,) = post(app, {"queries": ["Mars", "Venus"], "topk": 3, "return_scores": True})
    assert (response.status_code, response.json()) == (200, {"result": [[], []]})


def test_controls_need_no_part_of_the_folder(planets_folder: Path) -> None:
    """Would catch controls that need a part they do not use."""
    for name in ("random", "empty"):
        open_retriever(planets_folder, name, load_encoder=must_not_load)
