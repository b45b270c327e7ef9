"""``python -m calibration.passes.rank FILE``, on every rank: observes the experiment in a file, and leaves what it saw.

The file is a pickle in a folder that only this user can write, by the process that started the ranks.
"""

import os
import pickle
import sys
from pathlib import Path

from calibration.passes.observe import observe
from ladder_sim.errors import exit_code
from ladder_sim.system.processes import end_with_parent, reserve_stdout
from runtime.comm.launch import report_error


def _run(file: Path) -> None:
    observed = observe(pickle.loads(file.read_bytes()))
    if observed is not None:
        file.write_bytes(pickle.dumps(observed))


if __name__ == "__main__":
    end_with_parent()
    reserve_stdout()
    code = exit_code(lambda: _run(Path(sys.argv[1])), report=report_error)
    sys.stderr.flush()
    # a process group with a rank missing would wait in its destructor
    os._exit(code)
