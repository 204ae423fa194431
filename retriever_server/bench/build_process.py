"""One build: `python -m retriever_server.bench.build_process CORPUS RETRIEVER DIMENSION KIND OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

from retriever_server.bench.synthetic import SyntheticEncoder
from retriever_server.index import build_index


def main(corpus: str, retriever: str, dimension: str, kind: str, out: str) -> None:
    """Say that the libraries are loaded, and build; what is left of a build before is taken up."""
    print("building", flush=True)
    encoder = None if retriever == "bm25" else SyntheticEncoder(int(dimension))
    build_index(Path(corpus), Path(out), encoder, kind=kind, with_bm25=retriever != "dense")


if __name__ == "__main__":
    main(*sys.argv[1:])
