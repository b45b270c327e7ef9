"""A user's own collective measurements: output of NVIDIA's nccl-tests, or a CSV file of sizes and times.

Across nodes they become a fabric file, which a cluster names (``inter.fabric``); in one node, curves of a profile.

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
from typing import Literal

import numpy as np

from ladder_sim.costs.collectives.fabrics import SCHEMA
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import COLLECTIVES, CalibrationProfile, ProfileSource
from ladder_sim.errors import UsageError
from ladder_sim.system.files import read_text, shown_path
from ladder_sim.system.schema import KEY
from ladder_sim.units import quoted

Placement = Literal["in", "out"]
CSV_HEADER = ("bytes", "time_us")
# how far busbw / algbw may be from the ratio for op and ranks: printed figures are rounded to 0.01 GB/s
BUS_TOLERANCE = 0.1
# ... so it is checked on rows above this
MIN_BANDWIDTH_GBPS = 1.0

# of mpirun --tag-output and srun --label
_LAUNCHER_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std\w+>:|\d+: )\s*")
_STARTING = re.compile(r"Collective test starting: (\w+?)_perf")
_RANK = re.compile(r"#\s+Rank\s+\d+ .* on\s+(\S+) device\s+\d+ \[[^\]]*\] (.+)")


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
    placement: str = ""
    """"in place" or "out of place"; empty for a CSV file."""
    program: str = "nccl-tests"
    """The program that measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    op_key: tuple[str, ...]
    """Type, reduction and root: the same in every row of a sweep."""
    size_bytes: float
    time_us: float
    bus_factor: float | None = None
    algbw_GBps: float = 0.0


def read_sweep(path: Path, placement: Placement = "in") -> Sweep:
    """Read a log of nccl-tests, or a CSV file with the columns bytes and time_us.

    Parameters
    ----------
    path
        The file; a CSV file must end in .csv.
    placement
        Which columns of a log: in place, as inference engines reduce, or out of place.

    Raises
    ------
    UsageError
        If it holds no rows, an impossible time, several operations, or sizes that do not increase; names the line.
    """
    name = shown_path(path)
    lines = read_text(path, what="a log of nccl-tests").splitlines()
    if path.suffix.lower() == ".csv":
        return _sweep(name, list(_csv_rows(name, lines)))
    ops, hosts, device, rooted = set[str](), dict[str, int](), "", True
    rows: list[_Row] = []
    for number, line in enumerate(lines, 1):
        text = _LAUNCHER_PREFIX.sub("", line).strip()
        if starting := _STARTING.search(text):
            ops.add(starting[1])
        elif rank := _RANK.match(text):
            hosts[rank[1]] = hosts.get(rank[1], 0) + 1
            device = rank[2].strip()
        elif text.startswith("#"):
            if " redop " in text:
                # older versions leave the column out if the operation has no root
                rooted = " root " in text
        elif (row := _log_row(f"{name}:{number}", number, text, placement, rooted=rooted)) is not None:
            rows.append(row)
    if len(ops) > 1:
        raise _mixed_error(name, ", ".join(sorted(ops)))
    words = {"in": "in place", "out": "out of place"}[placement]
    sweep = _sweep(name, rows)
    return dataclasses.replace(sweep, op=next(iter(ops), ""), hosts=hosts, device=device, placement=words)


def collective_of(sweep: Sweep, ranks: int) -> str:
    """Return the collective of a sweep, checked against the file's header and the ratio of its bandwidths.

    Raises
    ------
    UsageError
        If the ranks or the operation contradict the file, or costs do not know the operation.
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
    base: CalibrationProfile, sweep: Sweep, *, name: str, ranks: int, algorithm: str, created: str
) -> CalibrationProfile:
    """Return a copy of `base` in which a sweep in one node takes the place of one curve.

    `algorithm` is what was measured, as ``--allreduce`` names it; `created` is the ISO date of the import. Raises
    UsageError if the sweep is not a collective of that number of ranks in one node.
    """
    op = collective_of(sweep, ranks)
    if len(sweep.hosts) > 1:
        raise UsageError(
            f"{sweep.file}: lists {len(sweep.hosts)} hosts: a profile holds collectives in one node",
            hint="make a fabric file: give --cluster, --nodes and --ranks-per-node instead of --base",
        )
    curve = Curve(size_bytes=np.array(sweep.sizes), seconds=np.array(sweep.seconds))
    curves = {**base.collectives.get(op, {}).get(algorithm, {}), ranks: curve}
    algorithms = {**base.collectives.get(op, {}), algorithm: curves}
    source = ProfileSource(
        what=f"{op} {algorithm}, {ranks} GPUs",
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


def _source(sweep: Sweep) -> str:
    parts = (sweep.program, Path(sweep.file).name, sweep.placement, sweep.device)
    return ", ".join(part for part in parts if part)


def _log_row(where: str, number: int, text: str, placement: Placement, *, rooted: bool) -> _Row | None:
    """Read ``size count type redop [root] time algbw busbw #wrong`` and the last four again, in place."""
    words = text.split()
    # every row starts with two whole numbers and two words; all else was printed by the launcher or NCCL
    if len(words) < 5 or not (words[0].isdigit() and words[1].isdigit() and words[2].isidentifier()):
        return None
    size, first = float(words[0]), 5 if rooted else 4
    rest = words[first:]
    if len(rest) not in (4, 8):
        raise UsageError(
            f"{where}: {len(words)} columns, not {first + 4} or {first + 8}",
            hint="is the row cut short, or two in one?",
        )
    if size == 0.0:
        # the smallest sizes of a sweep are rounded down to zero elements
        return None
    time, algbw, busbw = rest[4:7] if placement == "in" and len(rest) == 8 else rest[:3]
    rates = [_number(f"{where}: {label}", word) for label, word in (("algbw", algbw), ("busbw", busbw))]
    return _Row(
        line=number,
        op_key=tuple(words[2:first]),
        size_bytes=size,
        time_us=_time(where, time),
        bus_factor=rates[1] / rates[0] if rates[0] > 0.0 else None,
        algbw_GBps=rates[0],
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


def _time(where: str, word: str) -> float:
    time_us = _number(f"{where}: time", word)
    if not 0.0 < time_us < 1e9:
        raise UsageError(f"{where}: time is {word} us: must be above 0", hint="remove the row, or measure again")
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
