"""Writes a sweep to a file so that it can be killed at any moment and go on later.

Chunks are appended to ``FILE.part``, and after each a line of ``FILE.part.journal`` says where it ends. The journal
begins with a fingerprint of the sweep. To go on, what follows the last whole chunk is cut off. ``FILE`` itself appears
when everything is there, and is the same whether or not the sweep was interrupted.
"""

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.sweeps.evaluate import PROBLEM, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A sweep's file while it is not whole."""

    path: Path
    """Where the whole will be."""
    form: str
    """As in `formats.FORMATS`."""
    fingerprint: str
    """Of the sweep."""
    start: bytes
    """What stands before the first row."""

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


# by extension
FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}


# all digits of a hardware figure, and those of a result that do not depend on the machine that computed it
_SIZE, _FIGURE, _RESULT = "%d", "%.12g", "%.9g"


_ROW_GROUP_CHUNKS = 64


def encode(form: str, parts: Sequence[Rows]) -> bytes:
    """Rows as the file holds them."""
    return _ENCODERS[form](parts)


def header(form: str, names: Sequence[str]) -> bytes:
    """What stands before the first row."""
    return (",".join(names) + "\n").encode() if form == "csv" else b""


def require(form: str) -> None:
    """Refuse a format whose package is absent.

    Raises
    ------
    MissingDependencyError
        Parquet is wanted and pyarrow is absent.
    """
    if form == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MissingDependencyError(
                "a .parquet file needs pyarrow, which is absent",
                hint='pip install "ladder-sim[parquet]", or write .csv or .jsonl',
            ) from None


def _csv(parts: Sequence[Rows]) -> bytes:
    lines = []
    for rows in parts:
        cells = _cells(rows, _csv_cell)
        lines.append(_filled(",".join(cells.values()) + "\n", rows))
    return "".join(lines).encode()


def _jsonl(parts: Sequence[Rows]) -> bytes:
    lines = []
    for rows in parts:
        members = [f"{json.dumps(name)}: {cell}" for name, cell in _cells(rows, _json_cell).items()]
        lines.append(_filled("{" + ", ".join(members) + "}\n", rows))
    return "".join(lines).encode()


def _cells(rows: Rows, written: Callable[[Any], str]) -> dict[str, str]:
    """A row's cells by column: text where all rows have the same, else a format of the number."""
    same = {name: written(value).replace("%", "%%") for name, value in rows.constants.items()}
    missing = {name: written(None) for name in _missing(rows)}
    return {
        **same,
        # where the scenario's own stand
        **dict.fromkeys(rows.sizes, _SIZE),
        **dict.fromkeys(rows.figures, _FIGURE),
        **dict.fromkeys(rows.results, _RESULT),
        **missing,
        PROBLEM: written(rows.problem).replace("%", "%%"),
    }


def _filled(template: str, rows: Rows) -> str:
    """One line per row, by a single format operation: ten times as fast as one per number."""
    missing = _missing(rows)
    columns = {**rows.sizes, **rows.figures, **rows.results}
    varying = [values for name, values in columns.items() if name not in missing]
    numbers = chain.from_iterable(zip(*(values.tolist() for values in varying), strict=True))
    return template * len(rows) % tuple(numbers)


def _missing(rows: Rows) -> list[str]:
    """Results that no row of the block has."""
    return [name for name, values in rows.results.items() if np.isnan(values[0])]


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([f"{value:.12g}" if isinstance(value, float) else value])
    return "" if value == "" else text.getvalue()


def _json_cell(value: Any) -> str:
    return json.dumps(value)


def _arrow(parts: Sequence[Rows]) -> bytes:
    """One self-contained Arrow stream."""
    import pyarrow as pa

    schema = pa.schema([*_arrow_fields(parts[0].constants), *_numbers(parts[0]), (PROBLEM, pa.string())])
    batches = []
    for rows in parts:
        count = len(rows)
        same = {name: [value] * count for name, value in rows.constants.items()}
        arrays = [pa.array(values, schema.field(name).type) for name, values in {**same, **rows.sizes}.items()]
        arrays += [pa.array(values, from_pandas=True) for values in (*rows.figures.values(), *rows.results.values())]
        batches.append(pa.record_batch([*arrays, pa.array([rows.problem] * count)], schema))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def _arrow_fields(constants: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Types by field, not by value: a field of a point that cannot be is null."""
    import pyarrow as pa

    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    kinds = {name: argument.kind if argument.kind in (bool, int) else str for name, argument in ARGUMENTS.items()}
    return [(name, types[kinds.get(name, type(value))]) for name, value in constants.items()]


def _numbers(rows: Rows) -> list[tuple[str, Any]]:
    import pyarrow as pa

    return [(name, pa.float64()) for name in (*rows.figures, *rows.results)]


def write_parquet(streams: Iterable[bytes], path: Path) -> None:
    """Make a Parquet file of the chunks' Arrow streams."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    remaining = iter(streams)
    writer = None
    while group := [pa.ipc.open_stream(stream).read_all() for stream in islice(remaining, _ROW_GROUP_CHUNKS)]:
        rows = pa.concat_tables(group)
        writer = writer or pq.ParquetWriter(path, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()


_ENCODERS: Mapping[str, Callable[[Sequence[Rows]], bytes]] = {"csv": _csv, "jsonl": _jsonl, "parquet": _arrow}
