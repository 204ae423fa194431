"""Searches that are cut in parts, each part done by a replica; here all replicas are in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retriever_server.errors import IndexFolderError, PartGoneError, RetrieverServerError, ServingError
from retriever_server.opening import open_retriever
from retriever_server.remote import assembled
from retriever_server.retrievers import Retriever
from retriever_server.schema import RetrieverName
from retriever_server.settings import ClusterPlan, ServiceSettings
from retriever_server.steps import Replica, plan_parts
from tests.retriever_server.bag_of_words import PLANETS, load_encoder
from tests.retriever_server.conftest import get, post

QUERIES = ["no moon", "red planet", "", "nothing of the kind", *(passage.text for passage in PLANETS)]


class LocalPart:
    """A replica in this process, made of a part that went over the wire."""

    def __init__(self, part: Any) -> None:
        self._replica = Replica(pickle.loads(pickle.dumps(part)))
        self.is_gone = False

    def ask(self, *arguments: Any) -> Callable[[], Any]:
        """See RemotePart."""

        def answer() -> Any:
            if self.is_gone:
                raise PartGoneError("shard-0 cannot be reached", retry_after_seconds=2)
            return self._replica(*arguments)

        return answer


def in_parts(folder: Path, name: RetrieverName, num_shards: int) -> tuple[Retriever, dict[str, LocalPart]]:
    """The retriever, and its parts by name."""
    settings, plan = ServiceSettings(retriever=name), ClusterPlan(num_shards=num_shards)
    parts, store, manifest = plan_parts(folder, settings, plan, load_encoder)
    local = {part.name: LocalPart(part) for part in parts}
    return assembled(local, store, manifest, settings), local


@pytest.mark.parametrize(
    ("name", "num_shards"), [("dense", 1), ("dense", 2), ("dense", 6), ("bm25", 1), ("hybrid", 1), ("hybrid", 3)]
)
def test_parts_find_what_one_process_finds(name: RetrieverName, num_shards: int, hybrid_folder: Path) -> None:
    """Would catch another order of equal scores, local rows, or a part that cannot be sent to another machine."""
    retriever, parts = in_parts(hybrid_folder, name, num_shards)
    whole, _ = open_retriever(hybrid_folder, name, load_encoder=load_encoder)
    for top_k in (1, 4, 50):
        assert retriever.search(QUERIES, top_k=top_k) == whole.search(QUERIES, top_k=top_k)
    assert len(parts) == (num_shards + 1 if name != "bm25" else 0) + (name != "dense")


def test_a_part_that_is_gone_is_503_and_not_ready_until_it_is_back(hybrid_folder: Path) -> None:
    """Would catch passages that are missing without a word, and a supervisor that goes on sending work."""
    from retriever_server.app import create_app

    retriever, parts = in_parts(hybrid_folder, "dense", 2)
    app = create_app(retriever, cache_entries=0)
    assert post(app, {"query": "Mars"})[0].status_code == 200
    parts["shard-1"].is_gone = True
    gone = post(app, {"query": "Mars"})[0]
    assert (gone.status_code, gone.headers["retry-after"]) == (503, "2")
    assert "cannot be reached" in gone.json()["detail"]
    assert get(app, "/ready")[0].status_code == 503
    parts["shard-1"].is_gone = False
    assert post(app, {"query": "Mars"})[0].status_code == 200


@pytest.mark.parametrize(
    ("name", "num_shards", "error", "message"),
    [
        ("random", 1, ServingError, "leave --ray out"),
        ("bm25", 2, ServingError, "only a dense index is cut in shards"),
        ("dense", 7, IndexFolderError, "7 shards of 6 passages: give fewer --shards"),
    ],
)
def test_what_cannot_be_cut_is_told_before_anything_is_deployed(
    name: RetrieverName, num_shards: int, error: type[RetrieverServerError], message: str, hybrid_folder: Path
) -> None:
    """Would catch minutes of deployment before the bad news, or replicas that die one after the other."""
    with pytest.raises(error, match=message):
        in_parts(hybrid_folder, name, num_shards)


def test_a_part_that_the_folder_lacks_is_told(planets_folder: Path) -> None:
    """Would catch a bare assertion."""
    for name in ("bm25", "hybrid"):
        with pytest.raises(IndexFolderError, match="has no bm25 part"):
            in_parts(planets_folder, name, 1)
