"""Entry point: dispatches to the commands and turns errors into messages and exit codes."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ladder_sim import __version__
from ladder_sim.cli.analysis import advise, breakeven, compare, sensitivity
from ladder_sim.cli.calibrate import calibrate
from ladder_sim.cli.catalog import list_, show
from ladder_sim.cli.crosscheck import crosscheck
from ladder_sim.cli.doctor import doctor
from ladder_sim.cli.explore import explore
from ladder_sim.cli.predict import predict
from ladder_sim.cli.run import run
from ladder_sim.cli.sweep import sweep
from ladder_sim.cli.trace import trace
from ladder_sim.cli.validate import validate
from ladder_sim.errors import LadderSimError

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="ladder-sim",
    help="What does Ladder Residual buy on my model, my GPUs, my interconnect?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(predict)
app.command()(sweep)
app.command()(breakeven)
app.command()(sensitivity)
app.command()(advise)
app.command()(compare)
app.command()(explore)
app.command()(run)
app.command()(crosscheck)
app.add_typer(trace, name="trace")
app.command()(validate)
app.command("list")(list_)
app.command()(show)
app.command()(doctor)
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
    """Flags before the command; `main` acts on --debug, wherever it stands, and moves it here."""


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
    flags = ["--debug"] if debug else []
    command = typer.main.get_command(app)
    try:
        # not command.main(): that one ends the process when the reader of a pipe has enough
        with command.make_context(
            "ladder-sim", [*flags, *(item for item in arguments if item != "--debug")]
        ) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as ended:
        return ended.exit_code
    except LadderSimError as error:
        if debug:
            raise
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # the reader of a pipe has enough
        _drop_output()
        return 0
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is None:
            # without a file's name it is stdout, e.g. on a full disk
            _drop_output()
            return _fail(f"cannot write the output: {error.strerror}\n  hint: send it elsewhere", EXIT_FAILURE)
        if hasattr(error, "format_message"):
            # click's usage errors: typer brings its own copy of click, so their class depends on its version
            return _fail_usage(error)
        return _fail(f"{type(error).__name__}: {error}\n  hint: a bug; --debug shows where", EXIT_FAILURE)
    return 0


def _drop_output() -> None:
    # python must not complain when it flushes at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail_usage(error: Any) -> int:
    message = error.format_message()
    if not message:
        # no command was given, and help has been printed
        return EXIT_USAGE
    option = getattr(error, "param", None)
    if option is not None and hasattr(error.__cause__, "errors"):
        # typer checks values by pydantic, whose message leaves out the value; only numbers can be refused here
        given = error.__cause__.errors()[0]["input"]
        message = f"{option.opts[0]} is '{given}': must be a whole number"
    command = error.ctx.command_path if getattr(error, "ctx", None) else "ladder-sim COMMAND"
    return _fail(f"{message}\n  hint: `{command} --help` lists the options", EXIT_USAGE)


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
