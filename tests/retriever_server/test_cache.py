"""The result cache: it must be seen in the load alone, never in the answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.app import attach_retriever, create_app
from retriever_server.cache import ResultCache
from retriever_server.retrievers import Retriever
from retriever_server.schema import Passage, ScoredPassage
from tests.retriever_server.conftest import EchoRetriever, post
from tests.retriever_server.test_metrics import read_metrics

bodies = st.fixed_dictionaries(
    {
        "queries": st.lists(st.sampled_from(["Mars", "mars", "Mars ", ""]), min_size=1, max_size=4),
        "topk": st.sampled_from([None, 1, 3, 101]),
        "return_scores": st.booleans(),
    }
)


@settings(max_examples=25)
@given(st.lists(bodies, min_size=2, max_size=6), st.sampled_from([2, 1000]))
def test_cached_answers_are_the_fresh_ones(asked: list[dict[str, Any]], cache_entries: int) -> None:
    """Would catch a key without k, a key that folds different queries, and an answer changed after it was kept."""
    # Its passages name the query, letter by letter.
    cached = create_app(EchoRetriever(), cache_entries=cache_entries)
    fresh = create_app(EchoRetriever(), cache_entries=0)
    for body in [*asked, *asked]:
        assert post(cached, body)[0].content == post(fresh, body)[0].content


def test_what_was_answered_is_not_searched_again() -> None:
    """Would catch a cache that never hits, also for the known half of a request, or hits that are not counted."""
    echo = EchoRetriever()
    app = create_app(echo)
    post(app, {"queries": ["a", "b"]})
    post(app, {"queries": ["c", "a", "a", "b"]})
    post(app, {"queries": ["a"], "topk": 5})
    assert echo.batches == [["a", "b"], ["c"], ["a"]]
    assert read_metrics(app)["retriever_cache_hits_total"] == 3


def test_without_a_cache_everything_is_searched() -> None:
    """Would catch a benchmark with `--cache 0` that measures the cache, or a zero that fails at the first answer."""
    echo = EchoRetriever()
    app = create_app(echo, cache_entries=0)
    post(app, {"query": "a"})
    post(app, {"query": "a"})
    assert echo.batches == [["a"], ["a"]]
    assert read_metrics(app)["retriever_cache_hits_total"] == 0


def test_another_index_answers_for_itself(planets: Retriever) -> None:
    """Would catch passages of the old index served after another one took its place."""
    app = create_app(EchoRetriever())
    assert post(app, {"query": "Mars", "topk": 1})[0].json()["result"][0][0]["id"] == "Mars-0"
    attach_retriever(app, planets)
    assert post(app, {"query": "Mars", "topk": 1})[0].json()["result"][0][0]["id"] == "mars"


def test_a_failed_search_is_not_kept() -> None:
    """Would catch an error that is remembered, or an empty answer kept in its place."""
    echo = EchoRetriever()
    app = create_app(echo)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="blew up"):
            post(app, {"queries": ["explode"]})
    assert echo.batches == [["explode"], ["explode"]]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([1, 2, 101]))), st.integers(0, 4))
def test_the_cache_is_bounded_and_drops_the_least_recently_asked(
    asked: list[tuple[str, int]], max_entries: int
) -> None:
    """Would catch memory without bound, or the most popular query thrown out first."""
    cache, model = ResultCache(max_entries), dict[tuple[str, int], list[ScoredPassage]]()
    for query, top_k in asked:
        expected = model.pop((query, top_k), None)
        assert cache.get(query, top_k) == expected
        hits = [ScoredPassage(Passage(query, "", ""), float(top_k))]
        cache.keep(query, top_k, hits)
        if top_k <= 100:
            model[query, top_k] = hits
        if len(model) > max_entries:
            del model[next(iter(model))]
        assert len(cache) == len(model)
