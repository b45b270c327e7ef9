"""A user's own collective measurements: output of NVIDIA's nccl-tests, or a CSV file of sizes and times.

Across nodes they become a fabric file, which a cluster names (``inter.fabric``); in one node, curves of a profile. A
log may have anything before its lines: time stamps, ranks, hosts. Its JSON output (``-J``) has the same rows.

References
----------
https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md (busbw) and src/common.cu (columns).
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.costs.collectives.algorithms import MeasuredCollective, extended
from ladder_sim.costs.collectives.fabrics import SCHEMA
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import COLLECTIVES, CalibrationProfile, ProfileSource
from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.system.files import KEY, json_fault, read_text, shown_path
from ladder_sim.units import quoted

# ranks that a ratio of bandwidths gives are whole to this share, or not known; with more ranks it says too little
_WHOLE, _MOST_INFERRED = 0.02, 32.5
# the largest message of decode: 256 requests of a model that is 16,384 wide (Llama 3.1 405B), in 16 bits
DECODE_BYTES = 2.0 * 256 * 16_384
CSV_HEADER = ("bytes", "time_us")
# printed bandwidths are rounded to this
_ROUNDING_GBPS = 0.01
# how far bandwidths of a row may be from what the row's time, operation and ranks say
BUS_TOLERANCE = 0.1
# below it, rounding moves the ratio of two bandwidths too far to check it
MIN_BANDWIDTH_GBPS = 1.0
# times of shipped sweeps fall by at most 0.03 from one size to the next
_FALL = 0.1

# size, count, type and reduction begin a row, wherever it stands in its line
_ROW = re.compile(
    r"(?<![\w.:-])\d+\s+\d+\s+(?:u?int\d*|char|half|float|double|bfloat16|f(?:p|loat)?8\w*)\s+[a-z]\w*\s.*"
)
_STARTING = re.compile(r"Collective test starting: (\w+?)_perf")
_RANK = re.compile(r"#\s+Rank\s+\d+ .* on\s+(\S+) device\s+\d+ \[[^\]]*\] (.+)")
_FAILED = re.compile(r"Out of bounds values : (\d+) FAILED")
_PROGRAM = re.compile(r"(?:^|/)(\w+?)_perf\b")
# keys of a row in the JSON output of versions: its time, bandwidths and wrong results, in place
_FLAT_KEYS = ("ip_time", "ip_algbw", "ip_busbw", "ip_error")
_NESTED_KEYS = ("time", "alg_bw", "bus_bw", "nwrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One collective by message size, as in one file."""

    file: str
    """File it was read from."""
    op: str
    """As stated in the file, e.g. "all_reduce"; empty if it is not."""
    sizes: tuple[float, ...]
    """Message sizes, bytes, increasing; of the gathered whole for all-gather and reduce-scatter."""
    seconds: tuple[float, ...]
    """Time of each."""
    reduction: str = ""
    """As in the rows, e.g. "sum", or "none"."""
    bus_factor: float | None = None
    """Busbw / algbw of the fastest row: 2 (n - 1) / n for an all-reduce of n ranks, (n - 1) / n for the others."""
    hosts: Mapping[str, int] = field(default_factory=dict)
    """Ranks by host, if the file lists them."""
    device: str = ""
    """GPU, if the file names it."""
    program: str = "nccl-tests"
    """The program that measured."""
    wrong: tuple[float, ...] = ()
    """Message sizes, bytes, whose results were wrong: they are not among the sizes."""

    @property
    def falls(self) -> tuple[float, ...]:
        """Message sizes, bytes, that took clearly less than the size before."""
        pairs = zip(self.sizes[1:], itertools.pairwise(self.seconds), strict=True)
        return tuple(size for size, (before_s, after_s) in pairs if after_s < (1.0 - _FALL) * before_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    op_key: tuple[str, ...]
    """Type, reduction and root: the same in every row of a sweep."""
    size_bytes: float
    time_us: float
    bus_factor: float | None = None
    algbw_GBps: float = 0.0
    wrong: bool = False
    """Whether elements of the result were wrong."""


class _Content(NamedTuple):
    """What a log or its JSON output says."""

    rows: list[_Row]
    ops: set[str]
    """Collectives that it names."""
    hosts: dict[str, int]
    """Ranks by host."""
    device: str
    failed: int
    """Wrong results in all, as the file sums them up."""


def read_sweep(path: Path, *, force: bool = False) -> Sweep:
    """Read a log of nccl-tests, its JSON output, or a file .csv with the columns bytes and time_us.

    Of a log the columns in place are read, as inference engines reduce; out of place if there are no others. `force`
    reads the sizes with right results of a log whose check failed. Raises UsageError if it holds no rows, an impossible
    time, several operations, sizes that do not increase, or its check failed; names the line.
    """
    name = shown_path(path)
    lines = read_text(path, what="a log of nccl-tests").splitlines()
    if path.suffix.lower() == ".csv":
        return _sweep(name, list(_csv_rows(name, lines)))
    text = "\n".join(lines)
    content = (_json_content if text.lstrip().startswith("{") else _log_content)(name, text)
    right = [row for row in content.rows if not row.wrong]
    wrong = tuple(row.size_bytes for row in content.rows if row.wrong)
    if content.failed and not force:
        raise UsageError(
            f"{name}: its check failed: {content.failed} wrong results, at {len(wrong)} of {len(content.rows)} sizes",
            hint="mend the machine and measure again; --force imports the sizes whose results were right",
        )
    if len(content.ops) > 1:
        raise _mixed_error(name, ", ".join(sorted(content.ops)))
    return dataclasses.replace(
        _sweep(name, right), op=next(iter(content.ops), ""), hosts=content.hosts, device=content.device, wrong=wrong
    )


def _log_content(name: str, text: str) -> _Content:
    ops, hosts, device, rooted, failed = set[str](), dict[str, int](), "", True, 0
    rows: list[_Row] = []
    for number, line in enumerate(text.split("\n"), 1):
        # a launcher's label, a time stamp or a host may stand before it
        comment = line[line.index("#") :].strip() if "#" in line else ""
        if row := _ROW.search(line):
            rows.extend(_log_row(f"{name}:{number}", number, row[0], rooted=rooted))
        elif starting := _STARTING.search(line):
            ops.add(starting[1])
        elif rank := _RANK.match(comment):
            hosts[rank[1]] = hosts.get(rank[1], 0) + 1
            device = rank[2].strip()
        elif check := _FAILED.search(line):
            failed += int(check[1])
        elif " redop " in comment:
            # older versions leave the column out if the operation has no root
            rooted = " root " in comment
    return _Content(rows, ops, hosts, device, failed)


def _json_content(name: str, text: str) -> _Content:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as fault:
        reason, hint = json_fault(text, fault)
        raise UsageError(f"{name}: {reason}", hint=hint or "give the output of nccl-tests' -J") from None
    rows, ops, hosts, device, failed = list[_Row](), set[str](), dict[str, int](), "", 0
    for key, value in _entries("", document):
        if isinstance(value, str):
            if program := _PROGRAM.search(value):
                ops.add(program[1])
        elif {"type", "redop"} <= value.keys():
            rows.extend(_json_row(f"{name}, size {value.get('size', key)}", len(rows) + 1, key, value))
        elif host := next((str(value[each]) for each in ("host", "hostname", "node") if value.get(each)), ""):
            hosts[host] = hosts.get(host, 0) + 1
            device = str(value.get("device_name") or value.get("name") or device)
        elif key == "out_of_bounds":
            failed += 0 if value.get("okay", True) else int(value.get("count", 1))
    return _Content(rows, ops, hosts, device, failed or sum(row.wrong for row in rows))


def _entries(key: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield the objects and texts of a JSON document, each with its key; entries of a list have the list's key."""
    if isinstance(value, dict):
        yield key, value
        for name, each in value.items():
            yield from _entries(str(name), each)
    elif isinstance(value, list):
        for each in value:
            yield from _entries(key, each)
    elif isinstance(value, str):
        yield key, value


def _json_row(where: str, number: int, key: str, entry: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield the row of one size in JSON, in place: its cells have a prefix, or an object of their own."""
    cells, keys = (entry["in_place"], _NESTED_KEYS) if isinstance(entry.get("in_place"), dict) else (entry, _FLAT_KEYS)
    if keys[0] not in cells:
        raise UsageError(f"{where}: no {keys[0]}", hint="measure again")
    size = _number(f"{where}: size", str(entry.get("size", key)))
    if size == 0.0:
        return
    rates = [_number(f"{where}: {each}", str(cells.get(each, 0.0))) for each in keys[1:3]]
    time_us = _time(where, str(cells[keys[0]]), size, rates[0])
    wrong = cells.get(keys[3])
    yield _Row(
        line=number,
        op_key=(str(entry["type"]), str(entry["redop"]), str(entry.get("root", "-1"))),
        size_bytes=size,
        time_us=time_us,
        bus_factor=rates[1] / rates[0] if rates[0] > 0.0 else None,
        algbw_GBps=rates[0],
        wrong=wrong not in (None, "N/A") and not _number(f"{where}: {keys[3]}", str(wrong)) < 1.0,
    )


def collective_of(sweep: Sweep, ranks: int) -> str:
    """Return the collective of a sweep, checked against the file's header and the ratio of its bandwidths.

    Raises UsageError if the ranks or the operation contradict the file, or costs do not know the operation.
    """
    if sweep.op and sweep.op not in COLLECTIVES:
        raise UsageError(
            f"{sweep.file}: {sweep.op} is not a collective of a profile",
            hint=f"measure one of {', '.join(COLLECTIVES)}",
        )
    listed = sum(sweep.hosts.values())
    if listed and listed != ranks:
        raise UsageError(f"{sweep.file}: lists {listed} ranks, not {ranks}", hint="give the ranks that were measured")
    if sweep.bus_factor is None:
        return sweep.op or "all_reduce"
    share = (ranks - 1) / ranks
    expected = {"all_reduce": 2.0 * share, "all_gather": share, "reduce_scatter": share}
    unnamed = ("all_gather",) if sweep.reduction == "none" else ("all_reduce", "reduce_scatter")
    possible = (sweep.op,) if sweep.op else unnamed
    for op in possible:
        if abs(sweep.bus_factor / expected[op] - 1.0) < BUS_TOLERANCE:
            return op
    raise UsageError(
        f"{sweep.file}: busbw / algbw is {sweep.bus_factor:.3f}; "
        f"{possible[0]} on {ranks} ranks makes it {expected[possible[0]]:.3f}",
        hint="give the ranks that were measured",
    )


def ranks_of(sweep: Sweep) -> int:
    """Return the ranks of a sweep: those that its file lists, else what busbw / algbw says of them; 0 if neither does.

    The ratio is 2 (n - 1) / n for an all-reduce of n ranks. Large messages' printed bandwidths have four digits or
    more, which give the ranks of up to a few nodes.
    """
    if sweep.hosts or sweep.bus_factor is None or sweep.op not in ("", "all_reduce") or sweep.bus_factor < 1.0:
        return sum(sweep.hosts.values())
    ranks = 2.0 / max(1e-9, 2.0 - sweep.bus_factor)
    return round(ranks) if abs(ranks - round(ranks)) < _WHOLE * ranks and ranks < _MOST_INFERRED else 0


def fabric_text(sweep: Sweep, *, cluster: str, nodes: int, ranks_per_node: int, created: str) -> str:
    """Return the TOML text of a fabric file (`ladder_sim.costs.collectives.fabrics`) of an all-reduce across nodes.

    `cluster` is the catalog cluster whose links were measured, `created` the ISO date of the import. Raises UsageError
    if the sweep is not an all-reduce of that number of ranks and nodes.
    """
    op = collective_of(sweep, nodes * ranks_per_node)
    if op != "all_reduce":
        raise UsageError(f"{sweep.file}: {op}: a fabric file holds an all-reduce", hint="run all_reduce_perf")
    if sweep.hosts and len(sweep.hosts) != nodes:
        raise UsageError(f"{sweep.file}: lists {len(sweep.hosts)} hosts, not {nodes}", hint="correct --nodes")
    return f"""# All-reduce over {nodes} nodes of {ranks_per_node} GPUs, imported {created}.
{KEY} = {SCHEMA.version}
source = {json.dumps(_source(sweep))}
cluster = {json.dumps(cluster)} # whose links were measured
nodes = {nodes}
ranks_per_node = {ranks_per_node}
bytes = [{", ".join(f"{size:.0f}" for size in sweep.sizes)}]
time_us = [{", ".join(f"{seconds * 1e6:.6g}" for seconds in sweep.seconds)}]
"""


def add_to_profile(
    base: CalibrationProfile, sweep: Sweep, *, name: str, ranks: int, created: str
) -> CalibrationProfile:
    """Return a copy of `base` in which a sweep in one node takes the place of one curve, as far as its sizes reach.

    `created` is the ISO date of the import. Raises UsageError if the sweep is not a collective of that number of ranks
    in one node.
    """
    op = collective_of(sweep, ranks)
    if len(sweep.hosts) > 1:
        raise UsageError(
            f"{sweep.file}: lists {len(sweep.hosts)} hosts: a profile holds collectives in one node",
            hint="make a fabric file: give --cluster, --nodes and --ranks-per-node instead of --base",
        )
    curve = Curve(size_bytes=np.array(sweep.sizes), seconds=np.array(sweep.seconds))
    whole = base.measured_collectives.get((op, "nccl"))
    if whole is not None and ranks in whole.curves:
        curve = _within(curve, whole, ranks)
    algorithms = base.collectives.get(op, {})
    algorithms = {**algorithms, "nccl": {**algorithms.get("nccl", {}), ranks: curve}}
    source = ProfileSource(
        what=f"{op} nccl, {ranks} GPUs",
        version=created,
        licence="",
        files=(Path(sweep.file).name,),
        citation=_source(sweep),
    )
    return dataclasses.replace(
        base,
        name=name,
        created=created,
        sources=(*base.sources, source),
        collectives={**base.collectives, op: algorithms},
    )


def _within(curve: Curve, whole: MeasuredCollective, ranks: int) -> Curve:
    """Return a curve, completed by that of `whole` for messages outside of it."""

    def ideal_s(size_bytes: Floats) -> Floats:
        return whole.formula(size_bytes, ranks, whole.tier.allreduce_floor_s, whole.tier.bandwidth_Bps)

    own = np.log(curve.size_bytes), np.log(curve.seconds / ideal_s(curve.size_bytes))
    known = whole.curves[ranks]
    others = np.log(known.size_bytes), np.log(known.seconds / ideal_s(known.size_bytes))
    log_sizes, log_ratios = extended(own, others, lambda log_sizes: np.log(ideal_s(np.exp(log_sizes))))
    # whole bytes, which the logarithm has lost
    sizes = np.round(np.exp(log_sizes)).astype(np.float64)
    return Curve(size_bytes=sizes, seconds=ideal_s(sizes) * np.exp(log_ratios))


def _source(sweep: Sweep) -> str:
    return ", ".join(filter(None, (sweep.program, Path(sweep.file).name, sweep.device)))


def _log_row(where: str, number: int, text: str, *, rooted: bool) -> Iterator[_Row]:
    """Read ``size count type redop [root] time algbw busbw #wrong`` and the last four again, in place."""
    words = text.split()
    size, first = float(words[0]), 5 if rooted else 4
    rest = words[first:]
    if len(rest) not in (4, 8):
        raise UsageError(
            f"{where}: {len(words)} columns, not {first + 4} or {first + 8}",
            hint="is the row cut short, or two in one?",
        )
    if size == 0.0:
        # the smallest sizes of a sweep are rounded down to zero elements
        return
    time, algbw, busbw, wrong = rest[-4:]
    rates = [_number(f"{where}: {label}", word) for label, word in (("algbw", algbw), ("busbw", busbw))]
    yield _Row(
        line=number,
        op_key=tuple(words[2:first]),
        size_bytes=size,
        time_us=_time(where, time, size, rates[0]),
        bus_factor=rates[1] / rates[0] if rates[0] > 0.0 else None,
        algbw_GBps=rates[0],
        # versions before 2.13 write the largest error, with an exponent
        wrong=wrong.isdigit() and int(wrong) > 0,
    )


def _csv_rows(name: str, lines: list[str]) -> Iterator[_Row]:
    filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#"))
    for row, (number, line) in enumerate(filled):
        words = tuple(word.strip() for word in line.split(","))
        where = f"{name}:{number}"
        if row == 0:
            if words != CSV_HEADER:
                raise UsageError(
                    f"{where}: {quoted(line)}: the columns must be {','.join(CSV_HEADER)}",
                    hint=f"write {','.join(CSV_HEADER)} into the first line; a file must hold one sweep",
                )
            continue
        if len(words) != len(CSV_HEADER):
            raise UsageError(f"{where}: {quoted(line)}: must be two numbers", hint="bytes, then microseconds")
        size = _number(f"{where}: bytes", words[0])
        if size <= 0.0:
            raise UsageError(f"{where}: bytes is {quoted(words[0])}: must be above 0", hint="remove the row")
        yield _Row(line=number, op_key=(), size_bytes=size, time_us=_time(where, words[1]))


def _sweep(name: str, rows: list[_Row]) -> Sweep:
    if len(rows) < 2:
        raise UsageError(
            f"{name}: {len(rows)} rows of measurements: must be two or more",
            hint="give the output of all_reduce_perf of nccl-tests, or a CSV file with the columns bytes,time_us",
        )
    for before, row in itertools.pairwise(rows):
        if row.op_key != before.op_key:
            raise _mixed_error(f"{name}:{row.line}", f"{' '.join(row.op_key)} after {' '.join(before.op_key)}")
        if row.size_bytes <= before.size_bytes:
            raise UsageError(
                f"{name}:{row.line}: size {row.size_bytes:.0f} after {before.size_bytes:.0f}: sizes must increase",
                hint="a file must hold one sweep: split a log of several, or remove repeated rows",
            )
    fastest = max(rows, key=lambda row: row.algbw_GBps)
    return Sweep(
        file=name,
        op="",
        sizes=tuple(row.size_bytes for row in rows),
        seconds=tuple(row.time_us * 1e-6 for row in rows),
        reduction="".join(rows[0].op_key[1:2]),
        bus_factor=fastest.bus_factor if fastest.algbw_GBps >= MIN_BANDWIDTH_GBPS else None,
    )


def _time(where: str, word: str, size_bytes: float = 0.0, algbw_GBps: float = 0.0) -> float:
    """Read a time, microseconds, and check it against the bandwidth of its row, if that has one."""
    time_us = _number(f"{where}: time", word)
    if not 0.0 < time_us < 1e9:
        raise UsageError(f"{where}: time is {word} us: must be above 0", hint="remove the row, or measure again")
    rate_GBps = size_bytes / time_us * 1e-3
    if algbw_GBps and abs(rate_GBps - algbw_GBps) > BUS_TOLERANCE * algbw_GBps + _ROUNDING_GBPS:
        raise UsageError(
            f"{where}: {size_bytes:.0f} bytes in {word} us are {rate_GBps:.3g} GB/s, but algbw is {algbw_GBps:g}",
            hint="correct the row, or measure again",
        )
    return time_us


def _number(what: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"{what} is {quoted(word)}: must be a number", hint="is the row cut short?") from None


def _mixed_error(where: str, operations: str) -> UsageError:
    return UsageError(
        f"{where}: several operations ({operations})", hint="a file must hold one sweep of one operation: split it"
    )
