"""What a run needs to go on after it was killed: each rank's weights and moments, in a file of the step.

``latest`` names the step that every rank has written; it is replaced as a whole, after their files.
"""

import errno
import pickle
from pathlib import Path
from typing import Any

import torch

from ladder_sim.errors import UsageError
from ladder_sim.system.files import read_text, replacing, shown_path, write_file
from runtime.comm.base import Communicator


class States:
    """The states of one rank in a run's folder."""

    def __init__(self, folder: Path, comm: Communicator) -> None:
        self._folder, self._comm = folder, comm
        self._latest = folder / "latest"

    @property
    def step(self) -> int:
        """Of the newest state of all ranks; 0: there is none."""
        if not self._latest.exists():
            return 0
        text = read_text(self._latest, what="the number of a step", error=UsageError)
        if not text.strip().isdecimal():
            states = ", ".join(sorted(file.name for file in self._folder.glob("step-*.pt"))) or "none"
            raise UsageError(
                f"'{shown_path(self._latest)}': must hold the number of a step, not {text[:40]!r}",
                hint=f"write the number of a state that every rank has into it (states here: {states})",
            )
        return int(text)

    def load(self, device: torch.device) -> dict[str, Any]:
        """The newest; raises UsageError if it is damaged."""
        file = self._file(self.step)
        try:
            state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        # torch has no error of its own for a damaged file
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise UsageError(
                f"'{shown_path(file)}' cannot be read: {str(error).splitlines()[0]}",
                hint="the run has to start again, in a new folder",
            ) from None
        return state

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a state, and remove the one before; if there is no room that one stays, and UsageError is raised."""
        file = self._file(step)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(file) as opened:
                torch.save(state, opened)
        except (OSError, RuntimeError) as error:
            no_room = isinstance(error, RuntimeError) or error.errno == errno.ENOSPC
            raise UsageError(
                f"'{shown_path(file)}' cannot be written: {str(error).splitlines()[0]}",
                hint=("make room" if no_room else "make the folder writable")
                + f"; --resume goes on from step {self.step}",
            ) from None
        self._comm.barrier()
        if self._comm.rank == 0:
            write_file(self._latest, f"{step}\n")
        self._comm.barrier()
        for old in self._folder.glob(f"step-*.rank-{self._comm.rank}.pt"):
            if old != file:
                old.unlink()

    def _file(self, step: int) -> Path:
        return self._folder / f"step-{step}.rank-{self._comm.rank}.pt"
