"""Writes a sweep to a file so that it can be killed at any moment and go on later.

Chunks are appended to ``FILE.part``, and after each a line of ``FILE.part.journal`` says where it ends. The journal
begins with a fingerprint of the sweep. To go on, what follows the last whole chunk is cut off. ``FILE`` itself appears
when everything is there, and is the same whether or not the sweep was interrupted.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ladder_sim.errors import UsageError
from ladder_sim.sweeps.formats import write_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A sweep's file while it is not whole."""

    path: Path
    # where the whole will be
    form: str
    # as in `formats.FORMATS`
    fingerprint: str
    # of the sweep
    start: bytes
    # what stands before the first row

    @property
    def part(self) -> Path:
        """The chunks so far."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def journal(self) -> Path:
        """Where each of them ends."""
        return self.path.with_name(f"{self.path.name}.part.journal")

    def done(self) -> list[int]:
        """Feasible points of each chunk that is there already.

        Raises
        ------
        UsageError
            What is there is another sweep's.
        """
        return [feasible for _, feasible in self._marks()[1:]]

    def write(self, chunks: Iterable[tuple[bytes, int]], done: int) -> Iterator[int]:
        """Append chunks after the first `done`, with how many of their points are feasible, then put the file in place.

        Yields
        ------
        int
            Those feasible points, as soon as the chunk is safe.

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        with self._writable():
            self._begin(done)
            # unbuffered: what is written stays when the process is killed
            part, journal = self.part.open("ab", buffering=0), self.journal.open("ab", buffering=0)
        with part, journal:
            for chunk, feasible in chunks:
                with self._writable():
                    part.write(chunk)
                    journal.write(f"{part.tell()} {feasible}\n".encode())
                yield feasible
        with self._writable():
            self._finish()

    def _begin(self, done: int) -> None:
        """Leave the first `done` chunks, or none."""
        marks = self._marks()[: done + 1] if done else [(len(self.start), 0)]
        if done:
            os.truncate(self.part, marks[-1][0])
        else:
            self.part.write_bytes(self.start)
        self.journal.write_text("".join([f"{self.fingerprint}\n", *(f"{end} {feasible}\n" for end, feasible in marks)]))

    def _finish(self) -> None:
        """Put the whole in its place."""
        if self.form == "parquet":
            made = self.path.with_name(f"{self.path.name}.part.parquet")
            write_parquet(self._chunks(), made)
            made.replace(self.path)
            self.part.unlink()
        else:
            self.part.replace(self.path)
        self.journal.unlink()

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"'{self.path}' cannot be written: {error.strerror or error}",
                hint="choose another folder; --resume goes on where this stopped",
            ) from error

    def _chunks(self) -> Iterator[bytes]:
        ends = [end for end, _ in self._marks()]
        with self.part.open("rb") as part:
            part.seek(ends[0])
            for start, end in itertools.pairwise(ends):
                yield part.read(end - start)

    def _marks(self) -> list[tuple[int, int]]:
        """End of the start and of every whole chunk, bytes, each with its feasible points."""
        if not (self.journal.exists() and self.part.exists()):
            return []
        # the last line may be torn, or all there is
        *whole, _ = self.journal.read_text().split("\n")
        if not whole:
            return []
        fingerprint, *lines = whole
        if fingerprint != self.fingerprint:
            raise UsageError(
                f"'{self.part}' belongs to another sweep", hint="repeat its flags, or leave out --resume to start anew"
            )
        size = self.part.stat().st_size
        marks = [(int(end), int(feasible)) for end, feasible in map(str.split, lines)]
        return [mark for mark in marks if mark[0] <= size]
