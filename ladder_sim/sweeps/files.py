"""A sweep's file: rows as CSV, JSON lines or Parquet, written so that it can be killed at any moment and go on later.

It is the same whether or not the sweep was interrupted (`ladder_sim.system.journal`).
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ladder_sim.errors import MissingPackageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.sweeps.evaluate import PROBLEM, Rows
from ladder_sim.system.journal import Journal, settle

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
    """Return one line per row, by a single format operation: ten times as fast as one per number."""
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
    """Make a Parquet file of the chunks' Arrow streams."""
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
class PartFile(Journal):
    """A sweep's file until it is complete."""

    form: str
    """A value of `FORMATS`."""

    def finish(self) -> None:
        """Put the complete file in its place; a Parquet file is made of the chunks' Arrow streams."""
        if self.form != "parquet":
            Journal.finish(self)
            return
        made = self.path.with_name(f"{self.path.name}.part.parquet")
        _write_parquet(self.chunks(), made)
        settle(made)
        made.replace(self.path)
        self.drop()
