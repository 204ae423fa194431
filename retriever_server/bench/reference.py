"""A plain server in the reference's style, as a process: `python -m retriever_server.bench.reference FOLDER [VECTORS]`.

What Search-R1's own server does, written anew from a description: a blocking endpoint on the framework's pool of 40
threads; each request encodes and searches for itself, up to 512 queries at a time; FAISS with its own thresholds; index
and passages read into memory before the port is opened; documents turned to JSON by the framework. It is spared the
progress bar and the access log that the original writes for each request, and encodes with our encoder's settings, so
that the ratio is that of serving alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from retriever_server.bench.queries import EncodedQueries, StoredVectors
from retriever_server.encoders import Encoder, SentenceEncoder
from retriever_server.manifest import read_manifest
from retriever_server.store import PassageStore

_BATCH_QUERIES = 512


class QueryRequest(BaseModel):
    """The reference's body."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def reference_app(index: Any, documents: list[dict[str, str]], encoder: Encoder) -> FastAPI:
    """`POST /retrieve` with scores, whatever is asked: without them the original fails."""
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: QueryRequest) -> dict[str, Any]:
        result: list[list[dict[str, Any]]] = []
        for start in range(0, len(request.queries), _BATCH_QUERIES):
            vectors_ND = encoder.encode_queries(request.queries[start : start + _BATCH_QUERIES])
            scores_NK, rows_NK = index.search(np.ascontiguousarray(vectors_ND), request.topk or 3)
            result.extend(
                [{"document": documents[row], "score": float(score)} for row, score in zip(rows, scores, strict=True)]
                for rows, scores in zip(rows_NK, scores_NK, strict=True)
            )
        return {"result": result}

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ok"}

    return app


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    folder = Path(arguments[0])
    dense = read_manifest(folder).dense
    assert dense is not None
    index = faiss.read_index(str(folder / "index.faiss"))
    documents = [{"id": passage.id, "contents": passage.contents} for passage in PassageStore(folder)]
    if len(arguments) > 1:
        encoder: Encoder = StoredVectors(dense.encoder, EncodedQueries.load(Path(arguments[1])))
    else:
        encoder = SentenceEncoder(dense.encoder.name)
    # Port 0 is a free one: at uvicorn's own, 8000, a service may be running.
    config = uvicorn.Config(reference_app(index, documents, encoder), port=0, log_level="warning", access_log=False)
    with config.bind_socket() as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1:])
