"""Requests as they were recorded: traces of services, and result files of load generators.

    Mooncake   one JSON object a line: timestamp, input_length, output_length, hash_ids
    Azure LLM  CSV: TIMESTAMP, ContextTokens, GeneratedTokens
    BurstGPT   CSV: Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type
    AIPerf     profile_export.jsonl: one JSON object a line, in the order in which requests ended
    vLLM       result of ``vllm bench serve --save-result --save-detailed``: one JSON object

The first three are read line by line, in the units that `ladder_sim.serving.requests.trace_format` recognises; of an
AIPerf file only times and lengths are kept. A trace begins at its first request. Requests without an answer (BurstGPT
has failed ones) are left out. Each may be gzipped.
"""

import csv
import gzip
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.serving.requests.generators.aiperf import read_record
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.results import read_results, reason_of
from ladder_sim.serving.requests.trace_format import Row, TraceFormat
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.specs.workload import MAX_TOKENS
from ladder_sim.system.files import json_fault, shown_path

# longest line that is read: a hash id for each 512 tokens of the longest context
_LINE_BYTES = 4_000_000
# ten years, in seconds
_MOST_S = 3.2e8
_FORMATS = "Mooncake (JSON lines), Azure LLM or BurstGPT (CSV), or a detailed result of AIPerf or vllm bench serve"
_GZIP_MAGIC = b"\x1f\x8b"
# fields at the beginning of results that are one JSON object, and where that is
_RESULTS, _HEAD_BYTES = (b'"endpoint_type"', b'"aiperf_version"'), 1000


# rows by which a format is recognised
_HEAD_ROWS = 1000
# what reading a line raises
_UNREADABLE = (EOFError, zlib.error, OSError, UnicodeDecodeError)
_CORRECT = "correct the line, or delete it"
# what a line raises that is none of a trace
_FAULTS = (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, csv.Error)


class _Rows(NamedTuple):
    """What a file says."""

    rows: Iterator[tuple[str, Row]]
    """Requests in order of arrival, each with where it stands."""
    form: TraceFormat | None = None
    """How they are written; None where the program that wrote the file says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests of a file, which is read anew each time they are iterated over.

    Raises
    ------
    UsageError
        The file is no such trace; or a line is damaged, out of order or absurd: the message names it.
    """

    path: Path
    """In one of the formats above, recognised by its first lines."""
    requests: int | None = None
    """How many to read; all by default."""
    speed: float = 1.0
    """How much faster than recorded they come."""

    def __iter__(self) -> Iterator[Request]:
        with self._opened() as content:
            block = content.form.block if content.form else 0
            yield from _requests(content.rows, shown_path(self.path), block, self.requests, self.speed)

    @property
    def units(self) -> str:
        """Units that its times and hashes were read in, e.g. "times in seconds"; empty where its format has but one."""
        with self._opened() as content:
            return str(content.form) if content.form else ""

    @property
    def failed(self) -> int:
        """Number of rows without an answer, which are left out, up to the last request that is read."""
        failed = answered = 0
        with self._opened() as content:
            for _, row in content.rows:
                failed, answered = (failed, answered + 1) if row.gen else (failed + 1, answered)
                if answered == self.requests:
                    break
        return failed

    @contextmanager
    def _opened(self) -> Iterator[_Rows]:
        name = shown_path(self.path)
        try:
            # opening a pipe would wait for its writer
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            with open(descriptor, "rb") as raw:
                packed = raw.peek(2)[:2] == _GZIP_MAGIC
                file = gzip.GzipFile(fileobj=raw) if packed else raw
                one_object = any(sign in file.peek(_HEAD_BYTES) for sign in _RESULTS)
                with TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                    lines = _lines(text, name)
                    first = next(lines, (0, ""))
                    # one object on lines of its own
                    if one_object or first[1].strip() == "{":
                        yield _Rows(_of_results(self.path, name))
                    else:
                        yield _rows(chain([first], lines) if first[0] else lines, name)
        except FileNotFoundError:
            raise UsageError(f"{name}: no such file", hint="give the path of a trace; nothing is downloaded") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise UsageError(
                f"{name}: a gzip file that is cut off or damaged ({fault})", hint="copy or create it again"
            ) from None
        except (OSError, UnicodeDecodeError) as fault:
            raise UsageError(f"{name}: cannot be read ({fault})", hint=f"give a trace: {_FORMATS}") from None


def _rows(lines: Iterator[tuple[int, str]], name: str) -> _Rows:
    """Return the rows of a trace's lines, and their format."""
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{name}: is empty", hint=f"give a trace: {_FORMATS}")
    if first[1].lstrip().startswith("["):
        raise UsageError(
            f"{name}: a JSON array: must be one JSON object a line",
            hint="convert it (jq -c '.[]' FILE), with a time and lengths in each object",
        )
    fields: Callable[[str], Mapping[str, Any]]
    header: list[str] = []
    if first[1].lstrip().startswith("{"):
        lines, fields, whole_unit = chain([first], lines), _json_fields, "ms"
    else:
        header = [column.strip() for column in next(csv.reader([first[1]]))]
        fields, whole_unit = partial(_csv_fields, header), "s"
    if not header and '"metadata"' in first[1]:
        return _Rows(_sorted(_read(lambda line: Row(*read_record(fields(line))), lines, name), name))
    head: list[tuple[int, str]] = []
    fault: Exception | None = None
    try:
        head.extend(islice(lines, _HEAD_ROWS))
    except (UsageError, *_UNREADABLE) as error:
        # is raised when it is the line's turn
        fault = error
    known: list[Mapping[str, Any]] = []
    with suppress(*_FAULTS):
        known.extend(fields(line) for _, line in head)
    lines = chain(head, _rest(fault, lines))
    if header and not head:
        # the columns say whether it is one at all
        known = [dict.fromkeys(header, "")]
    if not known:
        return _Rows(_read(lambda line: TraceFormat.of([fields(line)], whole_unit=whole_unit).row({}), lines, name))
    try:
        form = TraceFormat.of(known, whole_unit=whole_unit)
    except UsageError as error:
        raise UsageError(f"{name}, line {first[0]}: {error.message}", hint=error.hint) from None
    return _Rows(_read(lambda line: form.row(fields(line)), lines, name), form)


def _rest(fault: Exception | None, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    if fault:
        raise fault
    yield from lines


def _read(reader: Callable[[str], Row], lines: Iterator[tuple[int, str]], name: str) -> Iterator[tuple[str, Row]]:
    for number, line in lines:
        where = f"{name}, line {number}"
        try:
            yield where, reader(line)
        except UsageError as fault:
            raise UsageError(f"{where}: {fault.message}", hint=fault.hint) from None
        except json.JSONDecodeError as fault:
            reason, hint = json_fault(line, fault, last=_ended(lines))
            raise UsageError(f"{where}: {reason}", hint=hint or _CORRECT) from None
        except _FAULTS as fault:
            raise UsageError(f"{where}: cannot be read: {reason_of(fault)}", hint=_CORRECT) from None


def _ended(lines: Iterator[tuple[int, str]]) -> bool:
    """Whether no line is left; one that cannot be read is."""
    with suppress(UsageError, *_UNREADABLE):
        return next(lines, None) is None
    return False


def _json_fields(line: str) -> Mapping[str, Any]:
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise ValueError("it must be a JSON object")
    return entry


def _csv_fields(header: list[str], line: str) -> Mapping[str, Any]:
    cells = next(csv.reader([line.rstrip("\r\n")]))
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells: must be {len(header)}, one for each column")
    return dict(zip(header, cells, strict=True))


def _sorted(rows: Iterator[tuple[str, Row]], name: str) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file that is not in order of arrival: 24 bytes of each request are kept."""
    starts_s, lengths = array("d"), array("q")
    for where, (at_s, prompt, gen, _) in rows:
        if gen:
            _check_lengths(where, prompt, gen)
            starts_s.append(at_s)
            lengths.extend((prompt, gen))
    for number, place in enumerate(np.argsort(np.asarray(starts_s), kind="stable").tolist(), 1):
        yield f"{name}, request {number}", Row(starts_s[place], lengths[2 * place], lengths[2 * place + 1])


def _of_results(path: Path, name: str) -> Iterator[tuple[str, Row]]:
    """Yield the requests of a result that is one JSON object."""
    results = read_results(path)
    if len(results) > 1:
        raise UsageError(f"{name}: holds {len(results)} runs: must be one", hint="give a file with one of them")
    if results[0].left_out:
        raise UsageError(f"{name}: {results[0].left_out}", hint="correct the file, or measure again")
    requests = results[0].requests
    if isinstance(requests, Traffic):
        raise UsageError(
            f"{name}: holds figures, but not each request",
            hint="measure with vllm bench serve --save-result --save-detailed, or give AIPerf's profile_export.jsonl",
        )
    for number, request in enumerate(requests, 1):
        yield f"{name}, request {number}", Row(request.arrival_s, request.prompt, request.gen)


def _requests(
    rows: Iterator[tuple[str, Row]], name: str, block: int, limit: int | None, speed: float
) -> Iterator[Request]:
    start_s = last_s = None
    count = 0
    for where, (at_s, prompt, gen, hashes) in rows:
        if not gen:
            continue
        start_s = at_s if start_s is None else start_s
        _check(where, at_s - start_s, 0.0 if last_s is None else last_s - start_s, prompt, gen)
        last_s = at_s
        prefix_tokens = block if hashes else 0
        arrival_s = (at_s - start_s) / speed
        yield Request(arrival_s=arrival_s, prompt=prompt, gen=gen, prefix=hashes, prefix_tokens=prefix_tokens)
        count += 1
        if count == limit:
            return
    if not count:
        raise UsageError(f"{name}: holds no request", hint=f"give a trace: {_FORMATS}")


def _check(where: str, at_s: float, before_s: float, prompt: int, gen: int) -> None:
    if not at_s <= _MOST_S:
        raise UsageError(f"{where}: comes {at_s:g} s after the first: must be within ten years", hint="correct it")
    if not at_s >= before_s:
        raise UsageError(
            f"{where}: comes {before_s - at_s:g} s before the line above: must be in order", hint="sort the trace"
        )
    _check_lengths(where, prompt, gen)


def _check_lengths(where: str, prompt: int, gen: int) -> None:
    for what, tokens in (("prompt", prompt), ("answer", gen)):
        if not 1 <= tokens <= MAX_TOKENS:
            raise UsageError(f"{where}: {what} of {tokens} tokens: must be 1 to {MAX_TOKENS}", hint="correct it")


def _lines(file: IO[str], name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold something, with their numbers."""
    number = 0
    while line := file.readline(_LINE_BYTES):
        number += 1
        if len(line) >= _LINE_BYTES:
            raise UsageError(f"{name}, line {number}: is longer than {_LINE_BYTES} bytes", hint=f"known: {_FORMATS}")
        if line.strip():
            yield number, line
