"""`ladder-sim calibrate`: passes its arguments on to the calibration package, which runs in a process of its own."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable

import typer

from ladder_sim.errors import MissingDependencyError

# the calibration package's own parser reads the arguments, --help among them
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
COMMANDS = {
    "run": "Measure ops on this machine; under torchrun: `-m calibration run` on every rank.",
    "fit": "Make a profile of the samples that `calibrate run` took.",
    "diff": "Compare the times of two profiles.",
    "export": "Write a profile's measurements as CSV.",
    "import": "Make a profile or a fabric file of published measurements or nccl-tests logs.",
    "fit-stack": "Fit a stack's figures that microbenchmarks cannot see to a few of its end-to-end runs.",
    "show": "Show what a profile holds, where it comes from and how well it interpolates.",
}

calibrate = typer.Typer(help="Make, read and compare measured profiles.", no_args_is_help=True)


def passing_on(command: str) -> Callable[[typer.Context], None]:
    """Make a command that runs ``python -m calibration COMMAND`` with its own arguments."""

    def run(context: typer.Context) -> None:
        if importlib.util.find_spec("calibration") is None:
            raise MissingDependencyError(
                "the 'calibration' package is not installed", hint="pip install ladder-sim, which contains it"
            )
        debug = ["--debug"] if context.find_root().params["debug"] else []
        raise typer.Exit(subprocess.call([sys.executable, "-m", "calibration", *debug, command, *context.args]))

    return run


for _name, _help in COMMANDS.items():
    calibrate.command(_name, help=_help, context_settings=PASSED_ON)(passing_on(_name))
# the name of `fit-stack` in earlier versions, which says so
calibrate.command("transfer", hidden=True, context_settings=PASSED_ON)(passing_on("transfer"))
