"""Command line of calibration: ``python -m calibration run ...``, ``fit ...``, ``import ...`` and so on."""

import os
import sys
from collections.abc import Sequence

from calibration import show, steps_fit
from calibration.crosscheck import command as crosscheck_command
from calibration.evidence import command as evidence_command
from calibration.fit import command as fit_command
from calibration.measure import command as measure_command
from calibration.nccl_tests import command as import_command
from calibration.stack_fit import command as stack_fit_command
from ladder_sim.errors import exit_code
from ladder_sim.system.arguments import Parser
from ladder_sim.system.processes import end_with_parent, reserve_stdout
from runtime.comm.launch import report_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; data on stdout, the rest on stderr.

    Returns
    -------
    int
        Exit code: 0, or that of the error.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code(lambda: _run(argv), debug="--debug" in argv, report=report_error)


def _run(argv: list[str]) -> int | None:
    options = argument_parser().read(argv)
    options.argv = argv
    # only what starts ranks has an exit code of its own
    code: int | None = options.run(options)
    return code


def argument_parser() -> Parser:
    """The commands and their options."""
    parser = Parser(prog="ladder-sim calibrate", description="From measurements to calibration profiles.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (
        measure_command,
        evidence_command,
        fit_command,
        stack_fit_command,
        steps_fit,
        import_command,
        crosscheck_command,
        show,
    ):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    end_with_parent()
    if "RANK" in os.environ:
        reserve_stdout()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # a process group with a rank missing would wait in its destructor
    os._exit(code)
