"""What every kernel says of itself, and the kinds of measured tables that hold the times of kernels.

Every count is per rank and per forward pass: FLOPs, bytes of device memory moved.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.des.shared import Floats, Number, maximum
from ladder_sim.kernels.machine import Gpu, Machine
from ladder_sim.kernels.sizes import Sizes
from ladder_sim.specs.workload import Imbalance
from ladder_sim.units import format_bytes

# element size of the residual stream, embedding, norms, LM head and queries: they stay 16-bit in every precision
STATE_BYTES = 2

# name of a kind of table
Kind = str


class Experts(NamedTuple):
    """What a table of experts was measured for: the layer, the format, and how unevenly tokens choose."""

    format: str
    """Format of the operands, by `ladder_sim.specs.workload.Format.name`."""

    # as in `MoeShape`
    hidden: int
    width: int
    experts: int
    top_k: int
    imbalance: Imbalance = "power-law-1.01"


# what tells tables of one kind apart: the layer of experts, the format, the type of the KV cache, or how tokens are
# chosen
TableOf = str | Experts


class TableKind(NamedTuple):
    """A kind of table: measured times of a kernel on a grid of its sizes."""

    kind: Kind
    label: str
    """Name for people."""
    axes: tuple[str, ...]
    """Sizes by which a kernel is looked up."""
    at: "Callable[..., Shape]"
    """Returns the kernel at a point, given the table's key and the sizes by name."""
    stand_ins: Mapping[str, str] = {}
    """Keys of tables whose ratios hold where one is missing; of others those of bf16 do."""
    has_formula: bool = False
    """Whether the kernel has a formula of its own where a profile has no such table."""

    def shape(self, of: TableOf, point: Mapping[str, ArrayLike]) -> "Shape":
        """Return the kernel at coordinates, maybe arrays, of the table with the key `of`."""
        return self.at(of, **{name: np.asarray(point[name], np.float64) for name in self.axes})


class Lookup(NamedTuple):
    """Where tables hold a kernel."""

    kind: Kind
    of: TableOf
    point: dict[str, ArrayLike]
    """Coordinates in the table."""
    times: Any = 1.0
    """Time of the kernel as a multiple of that at the point."""
    carried_over: bool = False
    """Whether the point is another kernel's, because no table can hold this one."""


class Work(NamedTuple):
    """What a kernel does."""

    moved_bytes: Any
    """Traffic of the device memory."""
    flops: Any = 0.0
    """Arithmetic, multiply-adds counted as two; 0: negligible next to the traffic."""
    stored_bytes: Any = 0.0
    """Traffic of what no cache of the GPU holds from one pass to the next."""


@dataclass(frozen=True, slots=True)
class Shape(ABC):
    """A kernel at its size, or a few kernels that always run in a row.

    Sizes are of one pass, or arrays of those of many passes; so is all that follows from them.
    """

    tables: ClassVar[tuple[TableKind, ...]] = ()
    """Kinds of tables that hold its times."""
    on_tensor_cores: ClassVar[bool] = False
    """Whether tensor cores multiply for most of its time, if it is compute bound."""
    reads_context: ClassVar[bool] = False
    """Whether passes that differ in context alone differ in it."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """What it does."""

    @property
    def moved_bytes(self) -> Any:
        """Device memory traffic, bytes."""
        return self.work.moved_bytes

    @property
    def flops(self) -> Any:
        """Arithmetic, multiply-adds counted as two."""
        return self.work.flops

    @property
    def format(self) -> str:
        """Format in which it multiplies, by `ladder_sim.specs.workload.Format.name`."""
        return "bf16"

    @property
    def rows(self) -> Any:
        """Rows of activations that meet each of its weights; None: it has no weights.

        A collective next to it waits longer for the device memory if these are several
        (`ladder_sim.costs.contention`).
        """
        return None

    @property
    def duty(self) -> float:
        """Share of the time in which the GPU multiplies as much as here, so that it may be slowed by its power."""
        return 0.0

    @property
    def label(self) -> str:
        """Its size in a few characters."""
        return format_bytes(self.moved_bytes)

    @property
    def per_sequence(self) -> bool:
        """Whether it grows with the sequences, not with their tokens."""
        return False

    @abstractmethod
    def resized(self, sizes: Sizes, rows: Any) -> Self:
        """Return the kernel of passes of these sizes, given that of one token; it runs on so many `rows` of them."""

    @property
    def lookup(self) -> Lookup | None:
        """Where tables hold it; None: no table does."""
        return None

    def arithmetic_s(self, gpu: Gpu, work: Work | None = None) -> Number:
        """Return the seconds of its arithmetic at the peak of the tensor cores; `work`, if it is known already."""
        seconds: Number = (work or self.work).flops / gpu.peak_flops(self.format)
        return seconds

    @property
    def launches(self) -> int:
        """Number of kernels in the row."""
        return 1

    def roofline_s(self, gpu: Gpu) -> Floats:
        """Return the ideal time, seconds: floors of kernels, and the slower of arithmetic and memory traffic.

        Sizes and the GPU's figures may be arrays that broadcast, so thousands of kernels or thousands of GPUs are one
        call. Measured tables hold ratios to this time (`ladder_sim.costs.lookup`): what it leaves out is in the ratio,
        as long as the same function makes the ratio and undoes it.
        """
        work = self.work
        busy_s: Floats = np.maximum(self.arithmetic_s(gpu, work), work.moved_bytes / gpu.hbm_bandwidth_Bps)
        return self.launches * gpu.kernel_s + busy_s

    def least_s(self, gpu: Gpu) -> Number:
        """Return the lower bound of its seconds: arithmetic, and traffic that no cache saves."""
        work = self.work
        return maximum(self.arithmetic_s(gpu, work), work.stored_bytes / gpu.hbm_bandwidth_Bps)

    @property
    def outlasts(self) -> "tuple[Any, Shape] | None":
        """In which passes it takes at least as long as another kernel, and that kernel; None: in no pass."""
        return None

    def untabled_s(self, machine: Machine) -> Number:
        """Return the seconds where no table holds it: by default of a small kernel, the most of which is traffic."""
        work = self.work
        return self.floor_s(machine) + maximum(machine.traffic_s(work.moved_bytes), work.flops / machine.gpu.bf16_flops)

    def floor_s(self, machine: Machine) -> Number:
        """Return the seconds that it takes at any size where no table holds it."""
        return machine.floor_s

    def stack_factor(self, machine: Machine, *, tabled: bool) -> Number:
        """Return the time of the engine's kernel relative to the table's, or if not `tabled` the formula's."""
        return 1.0

    def engine_s(self, machine: Machine) -> Number | None:
        """Return the seconds of an engine's kernel that is none of those in tables; None: tables have it."""
        return None


def count_text(count: float) -> str:
    """Return a number of tokens as text: in a mixed step it may be a mean."""
    return f"{round(count, 1):.12g}"
