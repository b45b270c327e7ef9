"""How a trace writes its requests: which field says what, in which unit of time, in blocks of how many tokens.

Fields are known by their names, units by what is in them. A time is a date, or a number whose unit stands at the end of
its field's name (``timestamp_ms``), or is that of a time since 1970. Otherwise it is in seconds if it has a fraction,
or in the unit of the format (milliseconds in JSON lines, as Mooncake has them; seconds in CSV, as BurstGPT has them),
unless requests then come at a rate that no service has. A block has as many tokens as make the numbers of hashes that
prompts have.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.units import quoted

# seconds of each unit that a trace may count time in
UNITS_S: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DATE = "date"
_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", _DATE: "dates"}
# names in lower case, words joined by "_": of Mooncake, Azure LLM, BurstGPT, Vidur, and of the usage in answers of the
# OpenAI API
_TIMES = ("timestamp", "arrived_at", "arrival_time", "arrival", "request_time", "start_time", "time")
_PROMPTS = (
    *("input_length", "contexttokens", "request_tokens", "num_prefill_tokens", "prompt_tokens", "input_tokens"),
    *("prompt_length", "prompt_len", "input_len", "context_tokens"),
)
_ANSWERS = (
    *("output_length", "generatedtokens", "response_tokens", "num_decode_tokens", "completion_tokens", "output_tokens"),
    *("output_len", "generated_tokens", "gen_len"),
)
_HASHES, _BLOCKS, _TOTALS = ("hash_ids",), ("block_size", "hash_block_size"), ("total_tokens",)
_SUFFIX = re.compile(r"(.*?)(?:_(s|sec|secs|seconds|ms|msec|millis|milliseconds|us|usec|microseconds|ns|nanoseconds))?")
# tokens of each hash id (Mooncake, FAST'25 traces: README of kvcache-ai/Mooncake), where prompts allow several sizes
MOONCAKE_BLOCK = 512
# 2000 and 2100, in seconds since 1970
_EPOCH_S = (946_684_800.0, 4_102_444_800.0)
# mean requests per second of a service: published traces have 0.27 (BurstGPT) to 45 (Azure LLM 2024)
_SLOWEST, _FASTEST = 1.0 / 200.0, 200.0
# fewer requests say nothing about a rate
_LEAST_REQUESTS = 10


class Row(NamedTuple):
    """A request as a trace has it."""

    at_s: float
    """When it came, seconds since any time."""
    prompt: int
    """Tokens of its prompt."""
    gen: int
    """Tokens of its answer; 0 if it failed."""
    hashes: tuple[int, ...] = ()
    """Names of the parts of its prompt, each of one block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """Fields and units of one trace."""

    at: str
    """Field of the time at which a request came."""
    prompt: str
    """Field of the tokens of a prompt."""
    gen: str
    """Field of the tokens of an answer."""
    hashes: str
    """Field of the names of a prompt's blocks; empty: it has none."""
    total: str
    """Field of the tokens of prompt and answer together; empty: it has none."""
    unit: str
    """Unit of the times: s, ms, us, ns or date."""
    block: int
    """Tokens of each block; 0: it has none."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], *, whole_unit: str) -> "TraceFormat":
        """Recognise the format by the fields of the first requests of a trace.

        Times that are whole numbers are in `whole_unit`, where nothing speaks against it.
        """
        names = {re.sub(r"\W+", "_", name.strip()).lower(): name for name in rows[0]}
        at, suffix = _time_field(names)
        prompt, gen, hashes, block, total = (
            next((names[name] for name in known if name in names), "")
            for known in (_PROMPTS, _ANSWERS, _HASHES, _BLOCKS, _TOTALS)
        )
        lacking = [
            what
            for what, field in (("when it came", at), ("its prompt's length", prompt), ("its answer's", gen))
            if not field
        ]
        if lacking:
            raise UsageError(
                f"a request with the fields {quoted(', '.join(rows[0])[:80])} does not say {', '.join(lacking)}",
                hint="a trace has e.g. timestamp, input_length and output_length; without times give --rate, --prompt "
                "and --gen",
            )
        unit = suffix or _unit([row.get(at) for row in rows], whole_unit)
        sizes = [(row.get(prompt), len(row[hashes])) for row in rows if isinstance(row.get(hashes), list)]
        stated = rows[0].get(block)
        tokens = stated if type(stated) is int and stated > 0 else _block(sizes)
        return cls(at=at, prompt=prompt, gen=gen, hashes=hashes, total=total, unit=unit, block=tokens if hashes else 0)

    def row(self, fields: Mapping[str, Any]) -> Row:
        """Read one request.

        Raises UsageError if it contradicts itself or the units of the trace; ValueError, KeyError, TypeError,
        OverflowError if it cannot be read.
        """
        prompt, gen = _whole(fields[self.prompt], self.prompt), _whole(fields[self.gen], self.gen)
        hashes = tuple(fields.get(self.hashes) or ()) if self.hashes else ()
        if not all(type(number) is int for number in hashes):
            raise ValueError("hash ids must be whole numbers")
        if hashes and prompt > 0 and len(hashes) not in (-(-prompt // self.block), prompt // self.block):
            raise UsageError(
                f"{len(hashes)} hash ids for a prompt of {prompt} tokens: must be {-(-prompt // self.block)}, one for "
                f"each {self.block} tokens as in most rows",
                hint="correct the row, or give each block size a file of its own",
            )
        if self.total and fields.get(self.total) not in (None, ""):
            total = _whole(fields[self.total], self.total)
            if total != prompt + gen:
                raise UsageError(
                    f"{self.total} is {total}: must be {prompt} + {gen} tokens, prompt and answer",
                    hint="correct the row, or leave the field out",
                )
        return Row(_seconds(fields[self.at], self.unit), prompt, gen, hashes)

    def __str__(self) -> str:
        blocks = f", a hash for each {self.block} tokens" if self.block else ""
        return f"times in {_WORDS[self.unit]}{blocks}"


def _time_field(names: Mapping[str, str]) -> tuple[str, str]:
    """Return the field of times, and the unit that its name ends in; empty if it ends in none."""
    for known in _TIMES:
        for name, field in names.items():
            match = _SUFFIX.fullmatch(name)
            if match and match[1] == known:
                suffix = match[2] or ""
                return field, next((unit for unit in ("ms", "us", "ns", "s") if _means(suffix, unit)), "")
    return "", ""


def _means(suffix: str, unit: str) -> bool:
    long = {"ms": "milli", "us": "micro", "ns": "nano", "s": "sec"}[unit]
    return suffix == unit or suffix == f"{unit}ec" or suffix.startswith(long)


def _unit(times: Sequence[Any], whole_unit: str) -> str:
    """Return the unit of times, from their values."""
    values = [value for value in map(_float, times) if value is not None]
    if not values:
        return _DATE
    first, last = min(values), max(values)
    for unit, seconds in UNITS_S.items():
        if _EPOCH_S[0] <= first * seconds and last * seconds <= _EPOCH_S[1]:
            return unit
    usual = whole_unit if all(value.is_integer() for value in values) else "s"
    if len(values) < _LEAST_REQUESTS or not 0.0 < last - first < math.inf:
        return usual
    # the unit of the format comes first, then the others from the longest on
    rates = {unit: (len(values) - 1) / ((last - first) * UNITS_S[unit]) for unit in dict.fromkeys((usual, *UNITS_S))}
    return next((unit for unit, rate in rates.items() if _SLOWEST <= rate <= _FASTEST), usual)


def _float(value: Any) -> float | None:
    """Return a time that is a number; None for a date, or what is no time."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _block(sizes: Sequence[tuple[Any, int]]) -> int:
    """Return the number of tokens of a block, which most prompts have by their numbers of hashes."""
    known = [(prompt, hashes) for prompt, hashes in sizes if type(prompt) is int and prompt > 0 and hashes > 0]
    if not known:
        return MOONCAKE_BLOCK
    prompt, hashes = max(known, key=lambda each: each[1])
    # of one hash, nothing but that a block is not shorter
    fitting = range(-(-prompt // hashes), (prompt - 1) // (hashes - 1) + 1) if hashes > 1 else range(prompt, prompt + 1)
    powers = [2**power for power in range(17)]
    agreeing = Counter[int]()
    for tokens in dict.fromkeys((MOONCAKE_BLOCK, *powers, *fitting[:64])):
        # a last block that is partial has a hash in all rows, or in none
        partial = sum(hashes == -(-prompt // tokens) for prompt, hashes in known)
        agreeing[tokens] = max(partial, sum(hashes == prompt // tokens for prompt, hashes in known))
    ((tokens, rows),) = agreeing.most_common(1)
    if 2 * rows < len(known):
        raise UsageError(
            f"{hashes} hash ids for a prompt of {prompt} tokens, and no size of a block fits most rows",
            hint="hash_ids must name every block of a prompt, each of the same number of tokens; or leave them out",
        )
    return tokens


def _whole(value: Any, field: str) -> int:
    """Return a number of tokens; tables write it as text."""
    if isinstance(value, str):
        number = float(value)
        if not number.is_integer():
            raise ValueError(f"{field} is {value}: must be a whole number")
        return int(number)
    if type(value) is not int:
        raise ValueError(f"{field} is {quoted(value)}: must be a whole number")
    return value


def _seconds(value: Any, unit: str) -> float:
    if unit == _DATE:
        if not isinstance(value, str):
            raise ValueError(f"a time is {quoted(value)}: must be a date, as in other rows")
        date = datetime.fromisoformat(value.strip())
        # without a zone, that of any one place: clocks there must not change
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"a time is {quoted(value)}: must be a number")
    return float(value) * UNITS_S[unit]
