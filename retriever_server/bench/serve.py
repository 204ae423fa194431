"""The service as it is, as a process: `python -m retriever_server.bench.serve FOLDER [VECTORS]`.

With a file of EncodedQueries it looks vectors up; else it encodes as the manifest says. Nothing is cached: a bench
asks the same queries again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from retriever_server.encoders import Encoder
from retriever_server.manifest import read_manifest
from retriever_server.serving import serve
from retriever_server.settings import ServiceSettings


def main(arguments: list[str]) -> None:
    """Serve until stopped."""
    folder = Path(arguments[0])

    def stored(name: str) -> Encoder:
        from retriever_server.bench.queries import EncodedQueries, StoredVectors

        dense = read_manifest(folder).dense
        assert dense is not None
        return StoredVectors(dense.encoder, EncodedQueries.load(Path(arguments[1])))

    serve(
        folder,
        ServiceSettings(cache_entries=0),
        port=0,
        load_encoder=stored if len(arguments) > 1 else None,
        report=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
