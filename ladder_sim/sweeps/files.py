"""A sweep's file: rows as CSV, JSON lines or Parquet, written so that it can be killed at any moment and go on later.

It is the same whether or not the sweep was interrupted.
"""

import csv
import io
import itertools
import json
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ladder_sim.errors import MissingPackageError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.sweeps.evaluate import PROBLEM, Rows
from ladder_sim.system.files import FULL, locked, replacing, write_all, writing_hint

# by extension
FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}
# all digits of a hardware figure, and those of a result that do not depend on the machine that computed it
_SIZE, _FIGURE, _RESULT = "%d", "%.12g", "%.9g"
_ROW_GROUP_CHUNKS = 64


def require(form: str) -> None:
    """Refuse a format whose package is not installed."""
    if form == "parquet" and find_spec("pyarrow") is None:
        raise MissingPackageError("a .parquet file needs pyarrow", extra="parquet", otherwise="write .csv or .jsonl")


def header(form: str, names: Sequence[str]) -> bytes:
    """Return what precedes the first row of a file."""
    return (",".join(names) + "\n").encode() if form == "csv" else b""


def encode(form: str, parts: Sequence[Rows]) -> bytes:
    """Return the rows as the file holds them; for Parquet, a self-contained Arrow stream."""
    if form == "parquet":
        return _arrow(parts)
    return "".join(_lines(form, rows) for rows in parts).encode()


def csv_of(columns: Mapping[str, NDArray[Any]], results: Collection[str]) -> str:
    """Return the CSV file of whole columns, of which `results` were computed."""
    text = io.StringIO()
    written = [
        [_csv_text(value, _RESULT if name in results else _FIGURE) for value in values.tolist()]
        for name, values in columns.items()
    ]
    csv.writer(text, lineterminator="\n").writerows(zip(*written, strict=True))
    return header("csv", list(columns)).decode() + text.getvalue()


def _csv_text(value: Any, form: str) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else form % value


def _lines(form: str, rows: Rows) -> str:
    missing = rows.missing
    varying = [values.tolist() for name, values in rows.columns.items() if name not in missing]
    if form == "csv":
        template = ",".join(_cells(rows, _csv_cell).values())
    else:
        cells = {**_cells(rows, json.dumps), "validated": "%s"}
        template = "{" + ", ".join(f"{json.dumps(name)}: {cell}" for name, cell in cells.items()) + "}"
        # a few, each shared by many rows
        answers = {id(each): each for each in rows.validated}
        texts = {key: json.dumps(each) for key, each in answers.items()}
        varying.append([texts[id(each)] for each in rows.validated])
    numbers = itertools.chain.from_iterable(zip(*varying, strict=True))
    return f"{template}\n" * len(rows) % tuple(numbers)


def _cells(rows: Rows, written: Callable[[Any], str]) -> dict[str, str]:
    """Return a row's cells by column: text where all rows have the same, else a format of the number."""
    return {
        **{name: written(value).replace("%", "%%") for name, value in rows.constants.items()},
        # in the place of the scenario's own
        **dict.fromkeys(rows.sizes, _SIZE),
        **dict.fromkeys(rows.figures, _FIGURE),
        **dict.fromkeys(rows.results, _RESULT),
        **{name: written(None) for name in rows.missing},
        PROBLEM: written(rows.problem).replace("%", "%%"),
    }


def _csv_cell(value: Any) -> str:
    if value is None or value == "":
        return ""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([f"{value:.12g}" if isinstance(value, float) else value])
    return text.getvalue()


def _arrow(parts: Sequence[Rows]) -> bytes:
    import pyarrow as pa

    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    first = parts[0]
    # by argument and not by value: an argument of a point that cannot run may be null
    kinds: dict[str, Any] = {name: type(value) for name, value in first.constants.items()}
    kinds |= {name: argument.kind if argument.kind in (bool, int) else str for name, argument in ARGUMENTS.items()}
    kinds |= dict.fromkeys((*first.figures, *first.results), float) | {PROBLEM: str}
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        for rows in parts:
            same = {name: [value] * len(rows) for name, value in (*rows.constants.items(), (PROBLEM, rows.problem))}
            columns = same | rows.columns
            arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in schema]
            stream.write_batch(pa.record_batch(arrays, schema))
    return sink.getvalue()


def _write_parquet(streams: Iterable[bytes], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    remaining = iter(streams)
    writer = None
    while group := [pa.ipc.open_stream(chunk).read_all() for chunk in itertools.islice(remaining, _ROW_GROUP_CHUNKS)]:
        rows = pa.concat_tables(group)
        writer = writer or pq.ParquetWriter(path, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A sweep's file until it is complete, which can be killed at any moment.

    Chunks are appended to ``FILE.part``, and after each a line of ``FILE.part.journal`` says where it ends, with a
    checksum of it. The journal begins with a fingerprint of what is written. To go on, what follows the last sound
    chunk is cut off. ``FILE`` itself appears when everything is there. One process at a time writes it.
    """

    path: Path
    """Where the complete file will be."""
    fingerprint: str
    """Equal for runs that write equal chunks."""
    form: str
    """A value of `FORMATS`."""
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
        """Append chunks after the first `done`, then put the file in place; yield feasible points of each safe one.

        Raises UsageError if the file cannot be written.
        """
        with self._writable():
            self._begin(done)
            # unbuffered: what is written stays when the process is killed
            part, journal = self.part.open("ab", buffering=0), self.journal.open("ab", buffering=0)
        with part, journal:
            for chunk, feasible in chunks:
                with self._writable():
                    write_all(part, chunk)
                    write_all(journal, _Mark.after(chunk, part.tell(), feasible).line)
                yield feasible
        with self._writable():
            self._finish()

    def _begin(self, done: int) -> None:
        marks = self._marks()[: done + 1] if done else [_Mark.after(self.start, len(self.start), 0)]
        if done:
            os.truncate(self.part, marks[-1].end)
        else:
            self.part.write_bytes(self.start)
        with replacing(self.journal) as file:
            file.write(b"".join([f"{self.fingerprint}\n".encode(), *(mark.line for mark in marks)]))

    def _finish(self) -> None:
        """Put the complete file in its place; a Parquet file is made of the chunks' Arrow streams."""
        whole = self.part
        if self.form == "parquet":
            whole = self.path.with_name(f"{self.path.name}.part.parquet")
            _write_parquet(self._chunks(), whole)
        _settle(whole)
        whole.replace(self.path)
        self.part.unlink(missing_ok=True)
        self.journal.unlink()

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

    def _chunks(self) -> Iterator[bytes]:
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
                f"'{self.part}' belongs to another sweep, or to other contents of a file that it reads",
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


def _settle(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
