"""Samples on disk: a file of JSON lines, first a header that describes the machine, then one sample a line.

The samples of each run are between two lines with the states of the GPUs, before it and after it.

A measurement that is killed loses at most the sample in flight: an incomplete last line is dropped when the file is
opened again, and the measurement continues after it.
"""

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ladder_sim.costs.profile import COLLECTIVES, CollectiveName
from ladder_sim.des.shared import Floats
from ladder_sim.errors import ProfileError
from ladder_sim.kernels import TABLE_KINDS, Experts, Kind, TableOf
from ladder_sim.system.files import KEY, Schema, append, locked, read_bytes, writing_hint

# 3: operands are random numbers
SCHEMA = Schema(
    version=3,
    oldest=3,
    stale="measure again: operands of earlier samples were equal numbers, which GPUs multiply faster",
)
# the one name in a line that is not a sample
_STATES = "gpus"
# weeks of measuring
_LIMIT_BYTES = 2**28
# beyond any size in a sample, and any time or clock; the products of three are still numbers
_LARGEST = 1e12
# in the name of an op that was timed while another ran, e.g. "gemm_beside_all_reduce"
BESIDE = "_beside_"
# behind it: not an op, but a part of the processor that is taken, SMs of a GPU or threads of a CPU
HELD = "held"
# a GEMM after seconds of GEMMs, when power and heat have settled: its time under "gemm" is that of a GPU just warm
SUSTAINED = "sustained_gemm"
# collectives that become curves of a profile: by name of the op, their kind and algorithm there
CURVES: Mapping[str, tuple[CollectiveName, str]] = {
    **{name: (name, "nccl") for name in COLLECTIVES},
    "all_to_all": ("all_to_all", "nccl"),
    "one_shot_all_reduce": ("all_reduce", "one-shot"),
    "two_shot_all_reduce": ("all_reduce", "two-shot"),
    "multimem_all_reduce": ("all_reduce", "multimem"),
}

# memory-bound kernels between GEMMs and attention
ELEMENTWISE = ("add", "norm", "add_norm", "rope", "activation")
# of the coordinates of experts those of their layer
LAYER = ("hidden", "width", "experts", "top_k")
DTYPE = "bf16"
# ops that become tables of a profile, by name: their kind, and which of that kind; of experts their points say which
TABLES: Mapping[str, tuple[Kind, str]] = {
    "gemm": ("gemm", DTYPE),
    "attention_prefill": ("attention_prefill", DTYPE),
    "attention_decode": ("attention_decode", DTYPE),
    "math_attention_decode": ("math_attention_decode", DTYPE),
    "sample_greedy": ("sample", "greedy"),
    "sample_top_k": ("sample", "top-k"),
    "sample_top_p": ("sample", "top-p"),
    "experts": ("moe", DTYPE),
}

# coordinates of a point, by op
COORDINATES: Mapping[str, tuple[str, ...]] = {
    **{op: TABLE_KINDS[kind].axes for op, (kind, _) in TABLES.items()},
    "experts": (*LAYER, *TABLE_KINDS["moe"].axes),
    **dict.fromkeys(ELEMENTWISE, ("bytes",)),
    **dict.fromkeys(("eager_launch", "graph_launch", "graph_kernel"), ()),
    "queued_kernel": ("streams",),
    "queued_all_reduce": ("streams", "bytes", "ranks", "nodes"),
    SUSTAINED: TABLE_KINDS["gemm"].axes,
    HELD: (HELD,),
    **dict.fromkeys(CURVES, ("bytes", "ranks", "nodes")),
}

# coordinates -> median seconds
SizedTimes = dict[tuple[float, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured op."""

    op: str
    """What `ladder_sim_calibration.measure.points` calls it, e.g. "gemm"."""
    point: Mapping[str, float]
    """Shape of the op: m, n, k of a GEMM; coordinates of its table, and the layer of experts; bytes that an elementwise
    kernel moves; bytes, ranks and nodes of a collective; those of both where two run at once; SMs or threads that are
    held next to it."""
    seconds: float | None
    """Median of its repeats, on a typical rank; of a collective and of what runs next to it, on the slowest. None: it
    did not fit in memory, or is not supported here."""
    spread: float = 0.0
    """Spread of the repeats: half the distance between the quartiles, over the median."""
    alone_s: float | None = None
    """Median without the op that ran at the same time."""
    by_rank: tuple[float, ...] = ()
    """Median on each rank; empty: there was one."""
    clock_MHz: float | None = None
    """The GPU's clock after the repeats; None: it is not known."""
    burst: bool = False
    """The clock fell during the repeats: the GPU does not keep up what was measured."""
    cause: str = ""
    """Why it has no time: first line of the error; empty: it has one, or an older file does not say."""

    @property
    def key(self) -> tuple[str, tuple[tuple[str, float], ...]]:
        """What was measured."""
        return self.op, tuple(sorted(self.point.items()))


class SampleStore:
    """A samples file, open for reading and appending; created if it is missing, read only without an `environment`.

    `conditions` are what else the header says when it is begun: samples of other conditions may follow. Raises
    ProfileError if the file is of another machine or schema, or holds a malformed line.
    """

    def __init__(
        self, path: Path, environment: Mapping[str, Any] | None = None, conditions: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        # bytes of an incomplete last line
        self.dropped = 0
        with nullcontext() if environment is None else self._writable():
            self._open(environment, conditions or {})

    def _open(self, environment: Mapping[str, Any] | None, conditions: Mapping[str, Any]) -> None:
        if environment is not None:
            self._begin(SCHEMA.marked(environment=dict(environment), **conditions))
        whole, _, rest = self._content().rpartition(b"\n")
        lines = whole.split(b"\n")
        self.environment = self._header(lines[0], environment)
        read = (self._sample(line, number) for number, line in enumerate(lines[1:], 2))
        self.samples = [sample for sample in read if sample]
        # only now: a file that is not a samples file stays as it is
        self.dropped = len(rest)
        if rest and environment is not None:
            os.truncate(self.path, len(whole) + 1)

    def append(self, sample: Sample) -> None:
        """Write a sample, so that it survives whatever comes next."""
        self._append(asdict(sample))
        self.samples.append(sample)

    def append_states(self, when: Literal["before", "after"], gpus: Sequence[Mapping[str, Any]]) -> None:
        """Write the states of the GPUs before or after a run; people read them, no fit does."""
        self._append({_STATES: {when: gpus}})

    def _append(self, content: Mapping[str, Any]) -> None:
        with self._writable():
            append(self.path, _line(content))

    def _begin(self, header: Mapping[str, Any]) -> None:
        """Write the header if the file is empty or holds only its beginning, because its writer was killed."""
        content = self._content() if self.path.exists() else b""
        if len(content) < len(line := _line(header)) and line.startswith(content):
            os.truncate(self.path, 0)
            append(self.path, line)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """Keep other processes from writing the file meanwhile."""
        try:
            with locked(self.path, wait=True):
                yield
        except OSError as error:
            raise ProfileError(
                f"samples '{self.path}' cannot be written: {error.strerror}", hint=writing_hint(error)
            ) from error

    def _content(self) -> bytes:
        return read_bytes(self.path, what="a samples file", limit_bytes=_LIMIT_BYTES, error=ProfileError)

    def _header(self, line: bytes, environment: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            header = json.loads(line)
            machine = dict(header["environment"])
        except (ValueError, KeyError, TypeError):
            raise ProfileError(f"'{self.path}' holds no samples", hint="`calibrate run` writes such a file") from None
        SCHEMA.check(header, f"samples file '{self.path}'", error=ProfileError)
        changed = [name for name in environment or () if machine.get(name) != (environment or {})[name]]
        if changed:
            raise ProfileError(
                f"samples '{self.path}' are of another machine: {', '.join(changed)} differ",
                hint="use one file per machine and environment: choose a new one",
            )
        return machine

    def _sample(self, line: bytes, number: int) -> Sample | None:
        """Return the sample of a line; None if the line holds states of GPUs."""
        if line.startswith(f'{{"{KEY}"'.encode()):
            raise ProfileError(
                f"samples '{self.path}', line {number}: a second header: samples of two machines or runs are mixed",
                hint="use one file per machine and environment: split it there",
            )
        try:
            fields = json.loads(line)
            if fields.keys() == {_STATES}:
                return None
            sample = Sample(**fields | {"by_rank": tuple(fields.get("by_rank", ()))})
            fault = _fault(sample)
        except (ValueError, TypeError, AttributeError):
            fault = "it must hold an op, its point and seconds"
        if fault:
            raise ProfileError(
                f"samples '{self.path}', line {number}: {line[:60].decode(errors='replace')!r} is not a sample",
                hint=f"{fault}; delete the line, or measure again",
            )
        return sample


def _line(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, allow_nan=False)}\n".encode()


def _fault(sample: Sample) -> str:
    """Say why a sample cannot have been measured; empty if it can."""
    parts = sample.op.split(BESIDE)
    unknown = [part for part in parts if part not in COORDINATES]
    if unknown:
        return f"no op is called {unknown[0]!r}"
    needed = dict.fromkeys(name for part in parts for name in COORDINATES[part])
    if set(sample.point) != set(needed):
        return f"the point of {sample.op} must hold {', '.join(needed) or 'nothing'}"
    if not all(_number(size) and 1 <= size <= _LARGEST and size == int(size) for size in sample.point.values()):
        return f"sizes must be whole numbers from 1 to {_LARGEST:g}"
    if sample.point.get("ranks", 1) % sample.point.get("nodes", 1):
        return "every node must have as many of the ranks"
    figures = [t for t in (sample.seconds, sample.alone_s, sample.clock_MHz, *sample.by_rank) if t is not None]
    if not all(_number(figure) and 1 / _LARGEST <= figure <= _LARGEST for figure in figures):
        return f"seconds and clocks must be numbers from {1 / _LARGEST:g} to {_LARGEST:g}"
    return "" if 0 <= sample.spread < math.inf else "its spread must be 0 or above, and finite"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class MeasuredOp(NamedTuple):
    """One op, of experts in one layer, and for a collective the size of its group."""

    op: str
    axes: tuple[str, ...] = ("bytes",)
    """Coordinates of its points."""
    ranks: int = 0
    """In the group, on all nodes; 0: not a collective."""
    nodes: int = 1
    layer: Experts | None = None
    """Layer of the experts; None for any other op."""

    @property
    def table(self) -> tuple[Kind, TableOf] | None:
        """Kind of the table that it becomes, and which of that kind; None: no table."""
        if self.op not in TABLES:
            return None
        kind, of = TABLES[self.op]
        return kind, self.layer or of

    @property
    def label(self) -> str:
        """The op as people read it."""
        if self.layer:
            return f"{self.op} {layer_label(self.layer)}"
        across = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.op}, {self.ranks} ranks{across}" if self.ranks else self.op

    def columns(self, points: Sequence[tuple[float, ...]]) -> dict[str, Floats]:
        """Return the points by coordinate."""
        return dict(zip(self.axes, np.array(points).T, strict=True))


def _layer(point: Mapping[str, float]) -> Experts:
    hidden, width, experts, top_k = (int(point[name]) for name in LAYER)
    return Experts(format=DTYPE, hidden=hidden, width=width, experts=experts, top_k=top_k)


def layer_label(layer: Experts) -> str:
    """Return a layer of experts in words, for example "8 of 4096 x 14336, top 2"."""
    return f"{layer.experts} of {layer.hidden} x {layer.width}, top {layer.top_k}"


def medians(samples: Sequence[Sample]) -> dict[MeasuredOp, SizedTimes]:
    """Return the median of each point's samples, without ops that ran out of memory or overlapped others.

    Bursts count only where a point has nothing else.
    """
    seconds: dict[MeasuredOp, dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    steady = {sample.key for sample in samples if not sample.burst}
    for sample in samples:
        if sample.seconds is None or BESIDE in sample.op or (sample.burst and sample.key in steady):
            continue
        axes = tuple(name for name in COORDINATES[sample.op] if name not in ("ranks", "nodes", *LAYER))
        layer = _layer(sample.point) if sample.op == "experts" else None
        op = MeasuredOp(sample.op, axes, int(sample.point.get("ranks", 0)), int(sample.point.get("nodes", 1)), layer)
        seconds[op][tuple(sample.point[name] for name in axes)].append(sample.seconds)
    return {op: {at: float(np.median(times)) for at, times in points.items()} for op, points in seconds.items()}
