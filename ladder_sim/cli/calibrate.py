"""`ladder-sim calibrate`: passes its arguments on to the calibration package, which runs in a process of its own."""

import importlib.util
from collections.abc import Callable

import typer

from ladder_sim.cli.flags import PASSED_ON
from ladder_sim.errors import MissingDependencyError, install_command
from ladder_sim.system import processes

COMMANDS = {
    "run": "Measure ops on this machine; under torchrun: `-m ladder_sim_calibration run` on every rank.",
    "evidence": "Measure a borrowed machine in one go: ops, runs, captures, and an archive to bring home.",
    "fit": "Make a profile of the samples that `calibrate run` took.",
    "check": "Measure this machine, predict every wiring from it, run them all, and compare.",
    "diff": "Compare the times of two profiles.",
    "export": "Write a profile's measurements as CSV.",
    "import": "Make a profile or a fabric file of a log of nccl-tests.",
    "fit-stack": "Fit a stack's figures that microbenchmarks cannot see to a few of its end-to-end runs.",
    "fit-steps": "Fit times of steps to the log of a running vLLM server, for `serve --steps`.",
    "show": "Show what a profile holds, where it comes from and how well it interpolates.",
}

calibrate = typer.Typer(help="Make, read and compare measured profiles.", no_args_is_help=True, add_completion=False)


def pass_on(context: typer.Context, command: str) -> None:
    """Run ``python -m ladder_sim_calibration COMMAND`` with the context's arguments, and exit with its code."""
    if importlib.util.find_spec("ladder_sim_calibration") is None:
        raise MissingDependencyError("the package 'ladder_sim_calibration' is missing", hint=install_command())
    debug = ["--debug"] if context.find_root().params["debug"] else []
    code, _ = processes.run(["ladder_sim_calibration", *debug, command, *context.args])
    raise typer.Exit(code)


def _passing_on(command: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        pass_on(context, command)

    return run


for _name, _help in COMMANDS.items():
    calibrate.command(_name, help=_help, context_settings=PASSED_ON)(_passing_on(_name))
