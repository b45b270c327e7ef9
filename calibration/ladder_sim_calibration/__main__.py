"""Command line of calibration: ``python -m ladder_sim_calibration run ...``, ``fit ...``, ``import ...`` and so on."""

import sys
from collections.abc import Sequence

from ladder_sim.errors import exit_code
from ladder_sim.system.arguments import Parser
from ladder_sim_calibration import show, steps_fit
from ladder_sim_calibration.crosscheck import command as crosscheck_command
from ladder_sim_calibration.evidence import command as evidence_command
from ladder_sim_calibration.fit import command as fit_command
from ladder_sim_calibration.measure import command as measure_command
from ladder_sim_calibration.nccl_tests import command as import_command
from ladder_sim_calibration.stack_fit import fit as stack_fit
from ladder_sim_runtime.comm.launch import end_with, report_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, data on stdout, the rest on stderr; return its exit code: 0, or that of the error."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code(lambda: _run(argv), debug="--debug" in argv, report=report_error)


def _run(argv: list[str]) -> int | None:
    options = argument_parser().read(argv)
    options.argv = argv
    # only what starts ranks has an exit code of its own
    code: int | None = options.run(options)
    return code


def argument_parser() -> Parser:
    """Return the parser of the `ladder-sim calibrate` commands and their options."""
    parser = Parser(prog="ladder-sim calibrate", description="From measurements to calibration profiles.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (
        measure_command,
        evidence_command,
        fit_command,
        stack_fit,
        steps_fit,
        import_command,
        crosscheck_command,
        show,
    ):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    end_with(main)
