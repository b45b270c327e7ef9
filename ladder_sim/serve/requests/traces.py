"""Requests as they were recorded: traces of Mooncake, Azure and BurstGPT, and result files of load generators.

    Mooncake   one JSON object a line: timestamp (ms), input_length, output_length, hash_ids (one for 512 tokens)
    Azure LLM  CSV: TIMESTAMP (date and time), ContextTokens, GeneratedTokens
    BurstGPT   CSV: Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type
    AIPerf     profile_export.jsonl: one JSON object a line, in the order in which requests ended
    vLLM       result of ``vllm bench serve --save-result --save-detailed``: one JSON object

The first three are read line by line, of an AIPerf file only times and lengths are kept. A trace begins at its first
request. Requests without an answer (BurstGPT has failed ones) are left out. Each may be gzipped.
"""

import csv
import gzip
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.serve.requests.request import MOST_TOKENS, Request
from ladder_sim.serve.requests.results import read_record, read_results
from ladder_sim.serve.requests.traffic import Traffic
from ladder_sim.system.files import shown_path

# tokens of each hash id (Mooncake, FAST'25 traces: README of kvcache-ai/Mooncake)
MOONCAKE_BLOCK = 512
# longest line that is read: a hash id for each 512 tokens of the longest context
_LINE_BYTES = 4_000_000
# ten years, in seconds
_MOST_S = 3.2e8
_FORMATS = "Mooncake (JSON lines), Azure LLM or BurstGPT (CSV), or a detailed result of AIPerf or vllm bench serve"
_GZIP_MAGIC = b"\x1f\x8b"
# fields at the beginning of results that are one JSON object, and where that is
_RESULTS, _HEAD_BYTES = (b'"endpoint_type"', b'"aiperf_version"'), 1000


class Row(NamedTuple):
    """A request as a trace has it."""

    at_s: float
    """When it came, since any time."""
    prompt: int
    """Tokens."""
    gen: int
    """Tokens of its answer; 0: it has none."""
    hashes: tuple[int, ...] = ()
    """Names of the parts of its prompt, each of `MOONCAKE_BLOCK` tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests of a file, which is read anew each time they are iterated over.

    Raises
    ------
    UsageError
        The file is no such trace; or a line is damaged, out of order or absurd: the message names it.
    """

    path: Path
    """In one of the formats above, recognised by its first line."""
    requests: int | None = None
    """How many to read; all by default."""
    speed: float = 1.0
    """How much faster than recorded they come."""

    def __iter__(self) -> Iterator[Request]:
        name = shown_path(self.path)
        try:
            # opening a pipe would wait for its writer
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            with open(descriptor, "rb") as raw:
                packed = raw.peek(2)[:2] == _GZIP_MAGIC
                file = gzip.GzipFile(fileobj=raw) if packed else raw
                one_object = any(sign in file.peek(_HEAD_BYTES) for sign in _RESULTS)
                with TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                    rows = _of_results(self.path, name) if one_object else _rows(_lines(text, name), name)
                    yield from _requests(rows, name, self.requests, self.speed)
        except FileNotFoundError:
            raise UsageError(f"{name}: no such file", hint="give the path of a trace; nothing is downloaded") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise UsageError(
                f"{name}: a gzip file that is cut off or damaged ({fault})", hint="copy or create it again"
            ) from None
        except (OSError, UnicodeDecodeError) as fault:
            raise UsageError(f"{name}: cannot be read ({fault})", hint=f"give a trace: {_FORMATS}") from None


def _rows(lines: Iterator[tuple[int, str]], name: str) -> Iterator[tuple[str, Row]]:
    """What lines say, in order of arrival, each with where it stands."""
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{name}: is empty", hint=f"give a trace: {_FORMATS}")
    reader, lines = _reader(first, lines, name)
    rows = _read(reader, lines, name)
    return _sorted(rows, name) if reader is _aiperf else rows


def _read(reader: Callable[[str], Row], lines: Iterator[tuple[int, str]], name: str) -> Iterator[tuple[str, Row]]:
    for number, line in lines:
        where = f"{name}, line {number}"
        try:
            yield where, reader(line)
        except UsageError as fault:
            raise UsageError(f"{where}: {fault.message}", hint=fault.hint) from None
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as fault:
            raise UsageError(
                f"{where}: cannot be read ({type(fault).__name__}: {fault})",
                hint="a truncated file? delete the line, or copy the file again",
            ) from None


def _sorted(rows: Iterator[tuple[str, Row]], name: str) -> Iterator[tuple[str, Row]]:
    """Rows of a file that is not in order of arrival: 24 bytes of each request are kept."""
    starts_s, lengths = array("d"), array("q")
    for where, (at_s, prompt, gen, _) in rows:
        if gen:
            _check_lengths(where, prompt, gen)
            starts_s.append(at_s)
            lengths.extend((prompt, gen))
    for number, place in enumerate(np.argsort(np.asarray(starts_s), kind="stable").tolist(), 1):
        yield f"{name}, request {number}", Row(starts_s[place], lengths[2 * place], lengths[2 * place + 1])


def _of_results(path: Path, name: str) -> Iterator[tuple[str, Row]]:
    """The requests of a result that is one JSON object."""
    results = read_results(path)
    if len(results) > 1:
        raise UsageError(f"{name}: holds {len(results)} runs: must be one", hint="give a file with one of them")
    requests = results[0].requests
    if isinstance(requests, Traffic):
        raise UsageError(
            f"{name}: holds figures, but not each request",
            hint="measure with vllm bench serve --save-result --save-detailed, or give AIPerf's profile_export.jsonl",
        )
    for number, request in enumerate(requests, 1):
        yield f"{name}, request {number}", Row(request.arrival_s, request.prompt, request.gen)


def _requests(rows: Iterator[tuple[str, Row]], name: str, limit: int | None, speed: float) -> Iterator[Request]:
    start_s = last_s = None
    count = 0
    for where, (at_s, prompt, gen, hashes) in rows:
        if not gen:
            continue
        start_s = at_s if start_s is None else start_s
        _check(where, at_s - start_s, 0.0 if last_s is None else last_s - start_s, prompt, gen)
        last_s = at_s
        prefix_tokens = MOONCAKE_BLOCK if hashes else 0
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
        if not 1 <= tokens <= MOST_TOKENS:
            raise UsageError(f"{where}: {what} of {tokens} tokens: must be 1 to {MOST_TOKENS}", hint="correct it")


def _reader(
    first: tuple[int, str], lines: Iterator[tuple[int, str]], name: str
) -> tuple[Callable[[str], Row], Iterator[tuple[int, str]]]:
    """How to read a line, by the first one, and the lines to read."""
    if first[1].lstrip().startswith("{"):
        return _aiperf if '"metadata"' in first[1] else _mooncake, chain([first], lines)
    header = [column.strip() for column in next(csv.reader([first[1]]))]
    for columns, read in ((_AZURE, _azure), (_BURSTGPT, _burstgpt)):
        if set(columns) <= set(header):
            return partial(_columns, read, [header.index(column) for column in columns]), lines
    raise UsageError(
        f"{name}: unknown format, its first line is {first[1].strip()[:80]!r}", hint=f"known are {_FORMATS}"
    )


def _columns(read: Callable[[list[str]], Row], places: list[int], line: str) -> Row:
    cells = next(csv.reader([line]))
    return read([cells[place] for place in places])


def _mooncake(line: str) -> Row:
    entry: dict[str, Any] = json.loads(line)
    prompt, gen, hashes = entry["input_length"], entry["output_length"], entry.get("hash_ids", [])
    if not all(type(number) is int for number in (prompt, gen, *hashes)):
        raise ValueError("lengths and hash ids must be whole numbers")
    return Row(float(entry["timestamp"]) / 1e3, prompt, gen, tuple(hashes))


def _aiperf(line: str) -> Row:
    return Row(*read_record(json.loads(line)))


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def _azure(cells: list[str]) -> Row:
    # some have seven digits of a second
    date, _, digits = cells[0].partition(".")
    seconds = datetime.fromisoformat(date).timestamp() + (float(f"0.{digits.split('+')[0]}") if digits else 0.0)
    return Row(seconds, int(cells[1]), int(cells[2]))


def _burstgpt(cells: list[str]) -> Row:
    return Row(float(cells[0]), int(float(cells[1])), int(float(cells[2])))


def _lines(file: IO[str], name: str) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers."""
    number = 0
    while line := file.readline(_LINE_BYTES):
        number += 1
        if len(line) >= _LINE_BYTES:
            raise UsageError(f"{name}, line {number}: is longer than {_LINE_BYTES} bytes", hint=f"known: {_FORMATS}")
        if line.strip():
            yield number, line
