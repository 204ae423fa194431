"""The `search-rl` command: composes the nouns, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 the answer is no (doctor), 2 an error that is told in one line, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from search_rl import __version__
from search_rl.errors import SearchRLError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="search-rl",
    help="Train a language model to decide when to search, what to search for and when to answer.",
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train a language model to decide when to search, what to search for and when to answer."""


def main() -> None:
    """Run the command line and exit the process: errors meant for the user become one line on stderr."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except SearchRLError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(EXIT_ERROR)


if __name__ == "__main__":
    main()
