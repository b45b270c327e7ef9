"""`ladder-sim crosscheck`: passes its arguments on to the calibration package, which compares and reports."""

import typer

from ladder_sim.cli.calibrate import pass_on


def crosscheck(context: typer.Context) -> None:
    """Measure this machine, predict every wiring from it, run them all, and compare."""
    pass_on(context, "crosscheck")
