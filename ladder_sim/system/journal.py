"""A file that grows chunk by chunk and can be killed at any moment: what is safe in it, and how to go on.

Chunks are appended to ``FILE.part``, and after each a line of ``FILE.part.journal`` says where it ends, with a checksum
of it. The journal begins with a fingerprint of what is written. To go on, what follows the last sound chunk is cut off.
``FILE`` itself appears when everything is there. One process at a time writes it.
"""

import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.system.files import FULL, locked, replacing, write_all, writing_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A file until it is complete."""

    path: Path
    """Where the complete file will be."""
    fingerprint: str
    """Equal for runs that write equal chunks."""
    start: bytes = b""
    """What precedes the first chunk."""

    @property
    def part(self) -> Path:
        """The chunks so far."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def journal(self) -> Path:
        """Where each of them ends."""
        return self.path.with_name(f"{self.path.name}.part.journal")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing it, from before `done` to after `write`.

        Raises UsageError if another process writes it, or its folder cannot be written.
        """
        with ExitStack() as stack:
            with self._writable():
                stack.enter_context(locked(self.part))
            yield

    def done(self) -> list[int]:
        """Return the feasible points of each chunk of an interrupted run; raise UsageError for another sweep's."""
        return [mark.feasible for mark in self._marks()[1:]]

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
        with self.appending(done) as append:
            for chunk, feasible in chunks:
                append(chunk, feasible)
                yield feasible
        with self._writable():
            self.finish()

    @contextmanager
    def appending(self, done: int) -> Iterator[Callable[[bytes, int], None]]:
        """Append chunks after the first `done`: the function that is given takes each, as `write` does."""
        with self._writable():
            self._begin(done)
            # unbuffered: what is written stays when the process is killed
            part, journal = self.part.open("ab", buffering=0), self.journal.open("ab", buffering=0)

        def append(chunk: bytes, feasible: int) -> None:
            with self._writable():
                write_all(part, chunk)
                write_all(journal, _Mark.after(chunk, part.tell(), feasible).line)

        with part, journal:
            yield append

    def _begin(self, done: int) -> None:
        """Keep the first `done` chunks only."""
        marks = self._marks()[: done + 1] if done else [_Mark.after(self.start, len(self.start), 0)]
        if done:
            os.truncate(self.part, marks[-1].end)
        else:
            self.part.write_bytes(self.start)
        with replacing(self.journal) as file:
            file.write(b"".join([f"{self.fingerprint}\n".encode(), *(mark.line for mark in marks)]))

    def finish(self) -> None:
        """Put the complete file in its place."""
        settle(self.part)
        self.part.replace(self.path)
        self.journal.unlink()

    def drop(self) -> None:
        """Remove what there is: the complete file is made in another way."""
        self.part.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"'{self.path}' cannot be written: {error.strerror or error}",
                hint="make room or allow larger files; --resume goes on where this stopped"
                if error.errno in FULL
                else writing_hint(error),
            ) from error

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks that `done` counts."""
        ends = [mark.end for mark in self._marks()]
        with self.part.open("rb") as part:
            part.seek(ends[0])
            for start, end in itertools.pairwise(ends):
                yield part.read(end - start)

    def _marks(self) -> "list[_Mark]":
        """Return the start and the chunks after it, up to the first that is incomplete or damaged."""
        if not (self.journal.exists() and self.part.exists()):
            return []
        # the last line may be incomplete, or the only one
        *whole, _ = self.journal.read_bytes().split(b"\n")
        if not whole:
            return []
        fingerprint, *lines = whole
        if fingerprint != self.fingerprint.encode():
            raise UsageError(
                f"'{self.part}' belongs to another sweep or search, or to other contents of a file that it reads",
                hint="repeat its flags with the ladder-sim that began it, or leave out --resume to start anew",
            )
        return list(_sound(lines, self.part))


class _Mark(NamedTuple):
    """A line of the journal: one chunk, or the start."""

    end: int
    """Where it ends in the file, bytes."""
    feasible: int
    """Number of the chunk's points that have figures."""
    checksum: int
    """Checksum of the chunk's bytes and of these numbers."""

    @classmethod
    def after(cls, chunk: bytes, end: int, feasible: int) -> "_Mark":
        return cls(end, feasible, zlib.crc32(f"{end} {feasible}".encode(), zlib.crc32(chunk)))

    @property
    def line(self) -> bytes:
        return f"{self.end} {self.feasible} {self.checksum}\n".encode()


def _sound(lines: Iterable[bytes], part: Path) -> Iterator[_Mark]:
    """Yield the marks up to the first whose line or chunk was changed, cut off or doubled."""
    with part.open("rb") as file:
        for number, line in enumerate(lines):
            try:
                end, feasible, _ = map(int, line.split())
            except ValueError:
                return
            start = file.tell()
            # a chunk is never empty, the start may be
            if not start + bool(number) <= end <= os.fstat(file.fileno()).st_size:
                return
            mark = _Mark.after(file.read(end - start), end, feasible)
            if mark.line != line + b"\n":
                return
            yield mark


def settle(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
