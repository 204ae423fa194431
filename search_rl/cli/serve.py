"""`search-rl serve`: the retrieval service over an index folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retriever_server.schema import RetrieverName


def serve(
    *,
    index: Annotated[Path, typer.Option(help="Index folder.")],
    retriever: Annotated[
        RetrieverName, typer.Option(help="How to search; `random` and `empty` are controls for ablations.")
    ] = "dense",
    rerank: Annotated[
        str | None, typer.Option(help="CrossEncoder (hub id or folder) that orders the best 20 anew.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; loopback unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    top_k: Annotated[int, typer.Option(min=1, help="Passages for requests that name no topk.")] = 3,
    cache: Annotated[int, typer.Option(min=0, help="Answers kept in memory, by query and k; 0 keeps none.")] = 10_000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token that clients must send; without it none.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log a line of JSON a request on stderr.")] = False,
) -> None:
    """Answer POST /retrieve over an index folder until stopped."""
    from retriever_server.serving import serve as serve_index

    serve_index(
        index,
        retriever=retriever,
        rerank=rerank,
        host=host,
        port=port,
        top_k=top_k,
        cache_entries=cache,
        token_file=token_file,
        log_requests=log_json,
        report=typer.echo,
    )
