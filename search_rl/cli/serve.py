"""`search-rl serve`: the retrieval service over an index folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retriever_server.schema import RetrieverName
from search_rl.cli import agent_options as options

if TYPE_CHECKING:
    from search_rl.config import ServiceSection

_LIMITS, _QUEUE, _RAY = "Limits of a request", "Queue", "Ray"


def serve(
    *,
    index: Annotated[Path | None, typer.Option(help="Index folder; the config's service.index if unset.")] = None,
    retriever: Annotated[
        RetrieverName | None,
        typer.Option(
            help="How to search: dense if neither this nor a config says otherwise; `random` and `empty` are controls."
        ),
    ] = None,
    rerank: Annotated[
        str | None, typer.Option(help="CrossEncoder (hub id or folder) that orders the best 20 anew.")
    ] = None,
    config: options.ConfigFile = None,
    set_: options.Overrides = None,
    host: Annotated[str, typer.Option(help="Address to listen on; loopback unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port and the memory-mapped index.")] = 1,
    top_k: Annotated[int, typer.Option(min=1, help="Passages for requests that name no topk.")] = 3,
    cache: Annotated[int, typer.Option(min=0, help="Answers kept in memory, by query and k; 0 keeps none.")] = 10_000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token that clients must send; without it none.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log a line of JSON a request on stderr.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with a model; never otherwise.")
    ] = False,
    max_body_mib: Annotated[
        int, typer.Option(min=1, help="A longer body is refused (413).", rich_help_panel=_LIMITS)
    ] = 32,
    max_queries: Annotated[
        int, typer.Option(min=1, help="More in one body are refused (422).", rich_help_panel=_LIMITS)
    ] = 8192,
    max_query_characters: Annotated[
        int, typer.Option(min=1, help="A longer query is cut and counted.", rich_help_panel=_LIMITS)
    ] = 8192,
    max_top_k: Annotated[int, typer.Option(min=1, help="A higher topk is lowered.", rich_help_panel=_LIMITS)] = 1000,
    max_passages: Annotated[
        int,
        typer.Option(min=1, help="More in one answer, queries times topk, are refused (422).", rich_help_panel=_LIMITS),
    ] = 409_600,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Queries that are searched at once.", rich_help_panel=_QUEUE)
    ] = 256,
    share: Annotated[
        int, typer.Option(min=1, help="Queries of one request before the next request's turn.", rich_help_panel=_QUEUE)
    ] = 32,
    max_pending: Annotated[
        int, typer.Option(min=1, help="Queries that may wait in a process; beyond that 503.", rich_help_panel=_QUEUE)
    ] = 8192,
    deadline: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request is answered 503.", rich_help_panel=_QUEUE)
    ] = 25.0,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap",
            help="Encode a batch while the one before is searched: for an encoder on a GPU, or many cores. Ray does.",
            rich_help_panel=_QUEUE,
        ),
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Search in Ray Serve deployments.", rich_help_panel=_RAY)] = False,
    shards: Annotated[int, typer.Option(min=1, help="Parts of the dense index, by rows.", rich_help_panel=_RAY)] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, help="Processes for each part and for the encoder.", rich_help_panel=_RAY)
    ] = 1,
    replica_cpus: Annotated[
        int, typer.Option(min=1, help="Cores and threads of each such process.", rich_help_panel=_RAY)
    ] = 1,
    ray_address: Annotated[
        str | None, typer.Option(help="A running cluster; without it Ray is started here.", rich_help_panel=_RAY)
    ] = None,
) -> None:
    """Answer POST /retrieve over an index folder until stopped."""
    from retriever_server.access import read_token
    from retriever_server.limits import Limits
    from retriever_server.serving import serve as serve_index
    from retriever_server.settings import Batching, ClusterPlan, ServiceSettings

    section = _service_section(config, set_ or ())
    index = index or section.index
    if index is None:
        raise typer.BadParameter("--index is missing, and no config says service.index")
    settings = ServiceSettings(
        retriever=retriever or section.retriever,
        rerank=rerank or section.rerank,
        top_k=top_k,
        limits=Limits(
            max_body_bytes=max_body_mib * 2**20,
            max_queries=max_queries,
            max_query_characters=max_query_characters,
            max_top_k=max_top_k,
            max_passages=max_passages,
        ),
        batching=Batching(
            max_batch_queries=max_batch,
            max_pending_queries=max_pending,
            share_queries=share,
            deadline_seconds=deadline,
            overlap=overlap,
        ),
        cache_entries=cache,
        token=read_token(token_file) if token_file is not None else None,
        log_requests=log_json,
        trust_remote_code=trust_remote_code,
    )
    cluster = (
        ClusterPlan(num_shards=shards, num_replicas=replicas, cpus_per_replica=replica_cpus, address=ray_address)
        if ray
        else None
    )
    serve_index(index, settings, host=host, port=port, workers=workers, cluster=cluster, report=typer.echo)


def _service_section(config: Path | None, overrides: Sequence[str]) -> ServiceSection:
    from search_rl.config import ServiceSection, read_config

    loaded = read_config(config, overrides)
    return loaded.service if loaded else ServiceSection()
