"""What ends a run: each fault is caused, and has to end with its message and code, in time."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ladder_sim.specs import catalog
from ladder_sim.system.processes import ending_children, killed, start

# of a run that is to fail: it begins in no time
LAYERS = 4
# until ranks replay graphs: start, meeting, compilation
BUSY_S = 45.0
# `--timeout` of ranks that are to be missed, and what all else may take
TIMEOUT_S, REST_S = 15.0, 30.0
# of a run that is to end by itself
PATIENCE_S = 180.0


class Fault(NamedTuple):
    """What is done to a run, and how it has to end."""

    name: str
    options: Sequence[str]
    """Options of `python -m ladder_sim_runtime bench`."""
    code: int
    """Exit code of the run."""
    words: str
    """Text in what the run prints."""
    strikes: signal.Signals | None = None
    """Sent to the last rank while it computes."""
    variables: Mapping[str, str] | None = None
    """Environment variables of the run."""


def faults(ranks: int, gpus: int) -> Iterator[Fault]:
    """Those that so many ranks can show on a machine with so many GPUs."""
    short = ("--repeats=1", "--warmups=0", "--prompt=8", "--gen=2")
    yield Fault("memory", ("--tp=1", "--batch=100000000", *short), 3, "needed per rank")
    yield Fault("too few GPUs", (f"--tp={2 * gpus}", "--backend=nccl", *short), 4, "NCCL needs one for each")
    if ranks == 1:
        return
    noisy = {"NCCL_DEBUG": "INFO"}
    yield Fault("noise of NCCL", (f"--tp={ranks}", *short), 0, "NCCL INFO", variables=noisy)
    busy = (f"--tp={ranks}", "--repeats=1000000", "--cuda-graphs=auto", f"--timeout={TIMEOUT_S:.0f}s")
    last = ranks - 1
    yield Fault("rank that dies", busy, 1, f"rank {last} was ended by SIGKILL", strikes=signal.SIGKILL)
    yield Fault("rank that stops", busy, 1, f"rank {last} died or was stopped", strikes=signal.SIGSTOP)


def cause(fault: Fault, model: str) -> tuple[bool, str]:
    """Run a few layers of a model into a fault; returns whether it ended as it has to, and how."""
    with tempfile.TemporaryDirectory(prefix="ladder-sim-") as folder, ending_children():
        config = Path(folder, "config.json")
        config.write_text(json.dumps(catalog.model_config(model) | {"num_hidden_layers": LAYERS}), "utf-8")
        command = ["ladder_sim_runtime", "bench", f"--model={config}", "--variant=ladder", *fault.options]
        with start(command, env=fault.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
            try:
                if fault.strikes is not None:
                    time.sleep(BUSY_S)
                    os.kill(_ranks_of(launcher.pid)[-1], fault.strikes)
                begun_s = time.monotonic()
                output, errors = launcher.communicate(timeout=PATIENCE_S)
            except (subprocess.TimeoutExpired, IndexError):
                return False, "it did not end" if launcher.poll() is None else "it ended too early"
            finally:
                launcher.kill()
    took_s = time.monotonic() - begun_s
    says = f"code {launcher.returncode} after {took_s:.0f} s: {_last(errors)}"
    if launcher.returncode < 0:
        says = str(killed(fault.name, launcher.returncode))
    in_time = fault.strikes is None or took_s <= TIMEOUT_S + REST_S
    # what a run prints is its result alone
    clean = fault.code != 0 or _is_json(output)
    holds = launcher.returncode == fault.code and fault.words in errors and in_time and clean
    return holds, says if holds else f"{says}; expected code {fault.code} and '{fault.words}'"


def _ranks_of(launcher: int) -> list[int]:
    """Processes of the ranks, in order."""
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text("utf-8").split()]


def _last(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.startswith("error: ")] or errors.splitlines() or [""]
    return lines[-1]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
