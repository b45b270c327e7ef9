"""`ladder-sim calibrate`: runs the calibration package in its own process; the simulator never imports it."""

import importlib.util
import subprocess
import sys

import typer

from ladder_sim.errors import MissingDependencyError

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

calibrate = typer.Typer(help="Make, read and compare measured profiles.", no_args_is_help=True)


@calibrate.command("run", context_settings=_PASSED_ON)
def measure(context: typer.Context) -> None:
    """Measure ops on this machine; under torchrun: `-m calibration run` on every rank."""
    _run(context, "run")


@calibrate.command(context_settings=_PASSED_ON)
def fit(context: typer.Context) -> None:
    """Make a profile of the samples that `calibrate run` took."""
    _run(context, "fit")


@calibrate.command(context_settings=_PASSED_ON)
def diff(context: typer.Context) -> None:
    """Compare the times of two profiles."""
    _run(context, "diff")


@calibrate.command(context_settings=_PASSED_ON)
def export(context: typer.Context) -> None:
    """Write a profile's measurements as CSV."""
    _run(context, "export")


@calibrate.command("import", context_settings=_PASSED_ON)
def import_(context: typer.Context) -> None:
    """Make a profile or a fabric of measurements: published ones, or your nccl-tests logs."""
    _run(context, "import")


@calibrate.command(context_settings=_PASSED_ON)
def transfer(context: typer.Context) -> None:
    """Fit what microbenchmarks cannot see of an inference stack to a few of its end-to-end runs."""
    _run(context, "transfer")


@calibrate.command(context_settings=_PASSED_ON)
def show(context: typer.Context) -> None:
    """Show what a profile holds, where it comes from and how well it interpolates."""
    _run(context, "show")


def _run(context: typer.Context, command: str) -> None:
    if importlib.util.find_spec("calibration") is None:
        raise MissingDependencyError(
            "the 'calibration' package is not installed", hint="pip install ladder-sim, which brings it along"
        )
    debug = ["--debug"] if context.find_root().params["debug"] else []
    raise typer.Exit(subprocess.call([sys.executable, "-m", "calibration", *debug, command, *context.args]))
