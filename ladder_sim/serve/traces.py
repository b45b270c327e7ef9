"""Requests as they were recorded, read line by line: traces of Mooncake, Azure and BurstGPT.

    Mooncake   one JSON object a line: timestamp (ms), input_length, output_length, hash_ids (one for 512 tokens)
    Azure LLM  CSV: TIMESTAMP (date and time), ContextTokens, GeneratedTokens
    BurstGPT   CSV: Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type

A trace begins at its first request. Requests without an answer (BurstGPT has failed ones) are left out.
"""

import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from ladder_sim.errors import UsageError
from ladder_sim.serve.lengths import MOST_TOKENS
from ladder_sim.serve.requests import Request
from ladder_sim.system.files import shown_path

# tokens of each hash id (Mooncake, FAST'25 traces: README of kvcache-ai/Mooncake)
MOONCAKE_BLOCK = 512
# longest line that is read: a hash id for each 512 tokens of the longest context
_LINE_BYTES = 4_000_000
# ten years, in seconds
_MOST_S = 3.2e8
_FORMATS = "Mooncake (JSON lines), Azure LLM or BurstGPT (CSV)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests of a file, which is read anew each time they are iterated over.

    Raises
    ------
    UsageError
        The file is no such trace; or a line is damaged, out of order or absurd: the message names it.
    """

    path: Path
    """In one of the formats above, told by its first line."""
    requests: int | None = None
    """How many to read; all by default."""
    speed: float = 1.0
    """How much faster than recorded they come."""

    def __iter__(self) -> Iterator[Request]:
        name = shown_path(self.path)
        try:
            # opening a pipe would wait for its writer
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            with open(descriptor, encoding="utf-8-sig", newline="") as file:
                yield from _requests(_lines(file, name), name, self.requests, self.speed)
        except FileNotFoundError:
            raise UsageError(f"{name}: no such file", hint="give the path of a trace; nothing is downloaded") from None
        except (OSError, UnicodeDecodeError) as fault:
            raise UsageError(f"{name}: cannot be read ({fault})", hint=f"give a trace: {_FORMATS}") from None


def _requests(lines: Iterator[tuple[int, str]], name: str, limit: int | None, speed: float) -> Iterator[Request]:
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{name}: is empty", hint=f"give a trace: {_FORMATS}")
    reader, lines = _reader(first, lines, name)
    start_s = last_s = None
    count = 0
    for number, line in lines:
        try:
            at_s, prompt, gen, hashes = reader(line)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as fault:
            raise UsageError(
                f"{name}, line {number}: cannot be read ({type(fault).__name__}: {fault})",
                hint="a truncated file? delete the line, or copy the file again",
            ) from None
        if not gen:
            continue
        start_s = at_s if start_s is None else start_s
        _check(f"{name}, line {number}", at_s - start_s, 0.0 if last_s is None else last_s - start_s, prompt, gen)
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
    for what, tokens in (("prompt", prompt), ("answer", gen)):
        if not 1 <= tokens <= MOST_TOKENS:
            raise UsageError(f"{where}: {what} of {tokens} tokens: must be 1 to {MOST_TOKENS}", hint="correct it")


# time, tokens of prompt and answer, names of the parts of the prompt
Row = tuple[float, int, int, tuple[int, ...]]


def _reader(
    first: tuple[int, str], lines: Iterator[tuple[int, str]], name: str
) -> tuple[Callable[[str], Row], Iterator[tuple[int, str]]]:
    """How to read a line, by the first one, and the lines to read."""
    if first[1].lstrip().startswith("{"):
        return _mooncake, chain([first], lines)
    header = [column.strip() for column in next(csv.reader([first[1]]))]
    for columns, read in ((_AZURE, _azure), (_BURSTGPT, _burstgpt)):
        if set(columns) <= set(header):
            return partial(_row, read, [header.index(column) for column in columns]), lines
    raise UsageError(
        f"{name}: unknown format, its first line is {first[1].strip()[:80]!r}", hint=f"known are {_FORMATS}"
    )


def _row(read: Callable[[list[str]], Row], places: list[int], line: str) -> Row:
    cells = next(csv.reader([line]))
    return read([cells[place] for place in places])


def _mooncake(line: str) -> Row:
    entry: dict[str, Any] = json.loads(line)
    prompt, gen, hashes = entry["input_length"], entry["output_length"], entry.get("hash_ids", [])
    if not all(isinstance(number, int) for number in (prompt, gen, *hashes)):
        raise ValueError("lengths and hash ids must be whole numbers")
    return float(entry["timestamp"]) / 1e3, prompt, gen, tuple(hashes)


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def _azure(cells: list[str]) -> Row:
    # some have seven digits of a second
    date, _, digits = cells[0].partition(".")
    seconds = datetime.fromisoformat(date).timestamp() + (float(f"0.{digits.split('+')[0]}") if digits else 0.0)
    return seconds, int(cells[1]), int(cells[2]), ()


def _burstgpt(cells: list[str]) -> Row:
    return float(cells[0]), int(float(cells[1])), int(float(cells[2])), ()


def _lines(file: IO[str], name: str) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers."""
    number = 0
    while line := file.readline(_LINE_BYTES):
        number += 1
        if len(line) >= _LINE_BYTES:
            raise UsageError(f"{name}, line {number}: is longer than {_LINE_BYTES} bytes", hint=f"known: {_FORMATS}")
        if line.strip():
            yield number, line
