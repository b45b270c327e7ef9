"""``python -m calibration.measure.together KIND FILE``, on every rank: whether all compute what one of them does alone.

Writes how many tokens are equal, and how many there are.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from calibration.measure.graphs import equal_together
from ladder_sim.errors import exit_code
from ladder_sim.system.files import write_file
from ladder_sim.system.processes import end_with_parent, reserve_stdout
from runtime.comm.launch import report_error
from runtime.comm.process_group import Degrees
from runtime.comm.rendezvous import CommConfig, Place, connect


def _run(kind: Any, file: Path) -> None:
    """With this kind of all-reduce, one of `AllReduce`."""
    place = Place.from_environment()
    equal, tokens = equal_together(connect(CommConfig(allreduce=kind), Degrees(place.size)))
    if place.rank == 0:
        write_file(file, json.dumps([equal, tokens]))


if __name__ == "__main__":
    end_with_parent()
    reserve_stdout()
    code = exit_code(lambda: _run(sys.argv[1], Path(sys.argv[2])), report=report_error)
    sys.stderr.flush()
    # a process group with a rank missing would wait in its destructor
    os._exit(code)
