"""Command line of calibration: ``python -m calibration run ...``, ``fit ...``, ``import ...`` and so on."""

import argparse
import os
import sys
from collections.abc import Sequence

from calibration import show
from calibration.crosscheck import command as crosscheck_command
from calibration.fit import command as fit_command
from calibration.importers import command as import_command
from calibration.measure import command as measure_command
from calibration.stack_fit import command as stack_fit_command
from ladder_sim.errors import LadderSimError
from runtime.comm.launch import leave_error
from runtime.errors import RunError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; data on stdout, the rest on stderr.

    Returns
    -------
    int
        Exit code: 0, or that of the error.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(argv, argparse.Namespace(argv=argv))
    try:
        # only what starts ranks has an exit code of its own
        return options.run(options) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of stdout has seen enough; keep the interpreter from failing on it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options.debug:
            raise
        known = isinstance(error, LadderSimError | RunError)
        text = str(error) if known else f"{type(error).__name__}: {error}\n  hint: a bug; --debug shows where"
        if not leave_error(text):
            print(f"error: {text}", file=sys.stderr)
        return error.exit_code if isinstance(error, LadderSimError | RunError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="calibration", description="From measurements to calibration profiles.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (measure_command, fit_command, stack_fit_command, import_command, crosscheck_command, show):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # a process group with a rank missing would wait in its destructor
    os._exit(code)
