"""`python -m ladder_sim_runtime COMMAND`: alone it starts its ranks itself, under torchrun it is one of them."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from ladder_sim.errors import LadderSimError, discard_output, exit_code
from ladder_sim_runtime.comm.launch import end_with, launch, report_error
from ladder_sim_runtime.commands import argument_parser


def main(argv: Sequence[str]) -> int:
    """Parse, and start the ranks or be one; returns the exit code."""
    return exit_code(lambda: _run(argv), debug="--debug" in argv, report=report_error)


def _run(argv: Sequence[str]) -> int:
    arguments = argument_parser().read(argv)
    ranks = arguments.tp * arguments.attention_dp * arguments.pp
    if ranks > 1 and not _emulates(arguments) and "RANK" not in os.environ:
        arguments.check(arguments)
        return launch(argv, ranks)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # an error, unlike elsewhere: the other ranks cannot go on without this one
        discard_output()
        raise LadderSimError("output closed") from None
    except OSError as error:
        # of stdout: files say themselves what could not be written
        if error.errno != errno.ENOSPC:
            raise
        discard_output()
        raise LadderSimError(
            f"stdout cannot be written: {error.strerror}", hint="make room; --save FILE keeps a result"
        ) from None
    return 0


def _emulates(arguments: argparse.Namespace) -> bool:
    """Whether one process stands for all ranks."""
    return arguments.backend in ("emulate", "none") or (arguments.backend == "auto" and arguments.table is not None)


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
