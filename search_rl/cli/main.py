"""The `search-rl` command: composes the nouns, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 the answer is no (doctor), 2 an error told in one line, 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from retriever_server.errors import RetrieverServerError
from search_rl import __version__
from search_rl.cli import ask, bench, data, demo, doctor, eval, index, model, plan, score, serve, sft, train
from search_rl.errors import SearchRLError

EXIT_ERROR = 2


class OneLineErrors(TyperGroup):
    """A command group that tells an error meant for the user in one line (its traceback under --debug)."""

    def invoke(self, ctx: Any) -> Any:
        """What the command returns. Raises typer.Exit with code 2 in place of an error told in one line."""
        try:
            return super().invoke(ctx)
        except (SearchRLError, RetrieverServerError) as error:
            if ctx.params["debug"]:
                raise
            typer.echo(f"search-rl: {error}", err=True)
            raise typer.Exit(EXIT_ERROR) from error


app = typer.Typer(
    name="search-rl",
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train a language model to decide when to search, what to search for and when to answer."""


app.add_typer(data.app, name="data")
app.command()(model.model)
app.add_typer(index.app, name="index")
app.command()(serve.serve)
app.command()(sft.sft)
app.command()(plan.plan)
app.command()(train.train)
app.add_typer(eval.app, name="eval")
app.command()(score.score)
app.command()(ask.ask)
app.add_typer(bench.app, name="bench")
app.command()(doctor.doctor)
app.command()(demo.demo)


def main() -> None:
    """Run the command line and exit the process."""
    app()


if __name__ == "__main__":
    main()
