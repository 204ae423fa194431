"""The service as it is, as a process: `python -m retriever_server.bench.serve FOLDER [VECTORS] [--overlap]`.

With a file of EncodedQueries it looks vectors up; else it encodes as the manifest says. Nothing is cached: a bench
asks the same queries again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from retriever_server.encoders import Encoder
from retriever_server.manifest import read_manifest
from retriever_server.serving import serve
from retriever_server.settings import Batching, ServiceSettings


def main(arguments: list[str]) -> None:
    """Serve until stopped."""
    folder, *vectors = (Path(argument) for argument in arguments if argument != "--overlap")

    def stored(name: str) -> Encoder:
        from retriever_server.bench.queries import EncodedQueries, StoredVectors

        dense = read_manifest(folder).dense
        assert dense is not None
        return StoredVectors(dense.encoder, EncodedQueries.load(vectors[0]))

    serve(
        folder,
        ServiceSettings(cache_entries=0, batching=Batching(overlap="--overlap" in arguments)),
        port=0,
        load_encoder=stored if vectors else None,
        report=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
