"""Entry point: dispatches to the commands and turns errors into messages and exit codes."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ladder_sim import __version__
from ladder_sim.cli.calibrate import calibrate
from ladder_sim.cli.catalog import list_, show
from ladder_sim.cli.predict import predict
from ladder_sim.errors import LadderSimError

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="ladder-sim",
    help="What does Ladder Residual buy on my model, my GPUs, my interconnect?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(predict)
app.command("list")(list_)
app.command()(show)
app.add_typer(calibrate, name="calibrate")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _global_flags(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Flags before the command; `main` has acted on --debug already."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv
        Arguments without the program's name; by default the process's own.

    Returns
    -------
    int
        0 done; 1 failed; 2 usage or bad input; 3 infeasible; 4 a missing dependency or device; 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    command = typer.main.get_command(app)
    try:
        code = command.main([item for item in arguments if item != "--debug"], "ladder-sim", standalone_mode=False)
        sys.stdout.flush()
    except LadderSimError as error:
        if debug:
            raise
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # the reader of a pipe has enough: python must not complain when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        if hasattr(error, "format_message"):
            # click's usage errors: typer brings its own copy of click, so their class depends on its version
            return _fail(f"{error.format_message()}\n  hint: `ladder-sim COMMAND --help` lists the options", EXIT_USAGE)
        return _fail(f"{type(error).__name__}: {error}\n  hint: a bug; --debug shows where", EXIT_FAILURE)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
