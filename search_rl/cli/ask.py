"""`search-rl ask`: one question, its episode shown turn by turn."""

from __future__ import annotations

from typing import Annotated

import typer

from search_rl.cli import agent_options as options


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    model: options.Model = None,
    retriever: options.Retriever = None,
    config: options.ConfigFile = None,
    set_: options.Overrides = None,
    endpoint: options.Endpoint = None,
    served_model: options.ServedModel = None,
    api: options.Api = None,
    endpoint_token_file: options.EndpointTokenFile = None,
    top_k: options.TopK = None,
    prompt: options.Prompt = None,
    protocol: options.Protocol = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(help="An accepted answer, to mark the agent's; may be given more than once."),
    ] = None,
) -> None:
    """Let the agent answer one question and show each turn as it happens."""
    import asyncio

    from rich.console import Console

    from search_rl.config import read_config
    from search_rl.evaluation import assemble
    from search_rl.types import Question
    from search_rl.viewer.live import watch_episode

    setup = assemble.setup_from(
        read_config(config, set_ or ()),
        model=model,
        retriever=retriever,
        top_k=top_k,
        prompt=prompt,
        protocol=protocol,
        endpoint=endpoint,
        served_model=served_model,
        api=api,
        endpoint_token_file=endpoint_token_file,
        concurrency=1,
    )
    asked = Question("ask", question, tuple(answer or ()), dataset="ask")

    async def run() -> bool:
        async with assemble.open_parts(setup) as parts:
            trajectory = await watch_episode(
                asked,
                Console(),
                engine=parts.engine,
                searcher=parts.searcher,
                codec=parts.codec,
                protocol=parts.protocol,
                limits=parts.limits,
            )
        return trajectory.is_void

    if asyncio.run(run()):
        raise typer.Exit(1)
