"""The cost model: measured times if a profile has a table, else the roofline; one formula for both.

Every kernel's time is ``roofline(this GPU) * ratio``, with the ratio measured / roofline from the profile's tables. On
the measured GPU that is the measurement; on another it is the measurement carried over by the roofline ratio.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, cached_property, lru_cache
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.costs.collectives.algorithms import INLINE
from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.collectives.network import ODD, Network
from ladder_sim.costs.estimate import (
    COLLECTIVE_ERROR,
    NCCL_ENDS,
    Estimate,
    OverlapParameters,
    Source,
    collective_sms,
    collective_traffic_bytes,
    kernel_demand,
    listed,
    waiting_share,
)
from ladder_sim.costs.hardware import Hardware, Link
from ladder_sim.costs.in_place import SCHEDULED_ERROR
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.profile import HBM_EFFICIENCY, CalibrationProfile
from ladder_sim.des.shared import Demand, Floats, Number, any_true, maximum, minimum, where
from ladder_sim.errors import ProfileError, UsageError
from ladder_sim.graph.ops import CollectiveKind, Op
from ladder_sim.kernels import TABLE_KINDS, CollectiveShape, Gpu, Group, Kind, Lookup, Machine, Shape, Stack, TableOf
from ladder_sim.specs.cluster import THIS_MACHINE
from ladder_sim.specs.scenario import HOPPER, Scenario
from ladder_sim.specs.techniques import family_of

# axes of tables that batch, prompts and contexts go along, and how far measured times may fall along them. A library
# may take another kernel for the next size (NVFP4 GEMMs on GB200 take 11 % less for 16 rows than for 8), but what it
# takes longer for could be padded; TPOT of 1,576 servings is as far off (7.0 and 8.1 %) as with all falls that were
# measured. What was not measured, of a format or any GPU with such tables, does not fall at all
LOAD_AXES = ("m", "tokens", "batch", "batch_heads", "batch_kv_heads", "q_len", "kv_len")
MEASURED_FALL = 1.04
# 90 % interval as a fraction either way. Measured: independent tables of one H100 agree within 15 %. The others are
# judgement, widening with the distance from a measurement.
KERNEL_ERROR: Mapping[Source, float] = {"measured": 0.15, "fitted": 0.2, "transferred": 0.3, "roofline": 0.4}

# the same if a fit to end-to-end runs has set the level: what is left is one shape relative to another. Nine tenths of
# the bf16 GEMM rows left out of the H100 tables lie within 5 %; the others are judgement
CALIBRATED_KERNEL_ERROR: Mapping[Source, float] = {**KERNEL_ERROR, "measured": 0.05, "fitted": 0.1, "roofline": 0.1}

# estimates that are kept for each GPU and stack, and for each network
_MOST_KEPT = 4096
_Kept = dict[object, Estimate]
_VALUES = {kind: attrgetter(*(each.name for each in fields(kind))) for kind in (Gpu, Stack, OverlapParameters, Link)}

# in no configuration
NOWHERE = np.zeros(1, np.bool_)

# the same of an op in real passes: medians of two runs of one program differ by as much on a shared machine
IN_PLACE_ERROR = 0.1
# demand of a kernel of a CPU: it uses the whole processor and all memory bandwidth
WHOLE_PROCESSOR = Demand(lost=1.0, memory=1.0, delay=1.0)

# traffic that add and norm add for each byte of an all-reduce of which they are part, where every rank normalises every
# token: the residual is read, and two tensors are written instead of one. It is half of a norm's own; the floor of a
# small kernel stays: with the start-up of collectives that servings of engines without fusion show, 357 servings of
# TensorRT-LLM (serving_dense.csv) demand 2.0 to 3.0 us
FUSED_NORM_TRAFFIC = 2.0
# traffic of add and norm in a kernel of their own: output and residual are read, residual and norm written
NORM_TRAFFIC = 4.0


class CostModel(Protocol):
    """Anything that knows how long ops take on one scenario's hardware and stack."""

    @property
    def hardware(self) -> Hardware:
        """Figures behind the times."""

    def estimates(self, ops: Sequence[Op]) -> Sequence[Estimate]: ...


class KernelCosts:
    """Times of every op of one scenario, each alone on its GPU.

    Without a profile they are those of the roofline. `hardware` replaces the scenario's figures, for instance by
    arrays.
    """

    def __init__(
        self, scenario: Scenario, profile: CalibrationProfile | None, hardware: Hardware | None = None
    ) -> None:
        if profile and profile.in_place and scenario.cluster.name != profile.cluster_name:
            raise ProfileError(
                f"profile '{profile.name}' holds times of real passes on one machine, not of '{scenario.cluster.name}'",
                hint=f"predict --cluster {profile.cluster_name}",
            )
        if scenario.cluster.name == THIS_MACHINE and not (profile and profile.in_place):
            raise UsageError(
                f"cluster '{THIS_MACHINE}' has no datasheet"
                + (f", and profile '{profile.name}' holds no times of real passes on it" if profile else ""),
                hint="measure a profile with `ladder-sim calibrate run --out FILE`, and give --profile FILE",
            )
        # figures behind the times
        self.hardware = hardware or Hardware.of(scenario, profile)
        # figures may be arrays
        self._varied = hardware is not None
        # measured tables
        self.profile = profile
        self._gpu_spec = gpu = scenario.cluster.gpu
        overheads = profile.overheads if profile else {}
        self._machine = Machine(
            gpu=self.hardware.gpu,
            stack=self.hardware.stack,
            sms=gpu.sms,
            memory_efficiency=profile.memory_efficiency if profile else HBM_EFFICIENCY,
            padded_share=scenario.stack.padded_share if gpu.compute_capability == HOPPER else 0.0,
            # a floor that was measured is of the kernels that ran
            compiled=scenario.stack.residual_add == "compiled" and "small_kernel_factor" not in overheads,
        )
        self._scenario = scenario
        self._sends_across = scenario.sends_across
        # figures to which the tables' ratios belong
        here = self.hardware.gpu
        self._table_gpu = here.over(profile.cluster.gpu, profile.reference) if profile else here
        self._here = profile is not None and here.same_as(Gpu.of(profile.cluster.gpu))
        self.measured_here = profile is not None and self.hardware.same_node(profile.cluster)
        calibrated = self._calibrated(scenario)
        self._kernel_error = CALIBRATED_KERNEL_ERROR if calibrated else KERNEL_ERROR
        # what estimates of kernels and of collectives depend on besides the op; None: each is made anew
        self._kept_by: tuple[tuple[object, ...], tuple[object, ...]] | None = None
        if not (self._varied or (profile and profile.in_place)):
            hardware = self.hardware
            figures = [_VALUES[type(each)](each) for each in (hardware.gpu, hardware.stack, hardware.overlap)]
            kernels = (profile, gpu, calibrated, self._machine.padded_share, self._machine.compiled, *figures)
            links = [_VALUES[Link](each) for each in (hardware.intra, hardware.inter, hardware.host)]
            techniques = frozenset(map(family_of, scenario.techniques.chosen)) & Network.techniques
            # another object once its file has changed
            leaves = scenario.crosses_nodes or not scenario.p2p
            fabric = fabric_curve(scenario.cluster.inter.fabric) if leaves else None
            parts = fabric, scenario.cluster, scenario.stack, scenario.plan, scenario.p2p
            others = hardware.host_low_latency_share, techniques, scenario.model.experts_per_token
            self._kept_by = kernels, (*kernels, *links, *others, *parts)
        if not (self._kept_by and _kept(self._kept_by[1])):
            # raises where there is no such collective
            _ = self._networks

    @cached_property
    def _networks(self) -> Mapping[Group, Network]:
        plan = self._scenario.plan
        ranks: dict[Group, int] = {"tensor": plan.tp, "experts": plan.attention_dp}
        return {
            group: Network(self._scenario, self.profile, self.hardware, group)
            for group, count in ranks.items()
            if count > 1
        }

    @property
    def links_profile(self) -> CalibrationProfile | None:
        """Measured collectives inside a node; None: there are no collectives, or only formulas."""
        return next((network.profile for network in self._networks.values()), None)

    def _calibrated(self, scenario: Scenario) -> bool:
        if self.profile is None or not self._here:
            return False
        stack_fit = self.profile.fit_of(scenario.stack.name)
        return stack_fit is not None and stack_fit.base == self.profile.tables_of

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Return the estimates of ops, each alone on its GPU; each table is looked up once.

        Shapes may hold arrays of one size per configuration. `source` is only valid for a single one.
        """
        lookups: dict[tuple[Kind, TableOf], list[tuple[int, Lookup]]] = defaultdict(list)
        keys: list[tuple[_Kept, object]] = []
        if self._kept_by:
            kernels, collectives = map(_kept, self._kept_by)
            keys = [
                (collectives, (op.kind, *_key(op.shape))) if op.message else (kernels, _key(op.shape)) for op in ops
            ]
        estimates = {at: known for at, (kept, key) in enumerate(keys) if (known := kept.get(key))}
        sent: dict[tuple[CollectiveKind, Group, str, float], list[int]] = defaultdict(list)
        for at, op in enumerate(ops):
            if at in estimates:
                continue
            if in_place := self._in_place(op):
                estimates[at] = in_place
            elif (message := op.message) is not None:
                size = message.message_bytes
                apart = (size if self._varied else 0.0) if isinstance(size, float) else id(op)
                sent[cast(CollectiveKind, op.kind), message.group, message.kernel, apart].append(at)
            elif (lookup := op.shape.lookup) is None or (
                TABLE_KINDS[lookup.kind].has_formula and self._table(lookup.kind, lookup.of)[0] is None
            ):
                estimates[at] = self._kernel(op.shape, op.shape.untabled_s(self._machine), "roofline")
            else:
                lookups[lookup.kind, lookup.of].append((at, lookup))
        for (collective, *_), places in sent.items():
            messages = [cast(CollectiveShape, ops[at].shape) for at in places]
            estimates.update(zip(places, self._collectives(collective, messages), strict=True))
        for (kind, of), placed in lookups.items():
            tabled = self._tabled(kind, of, [(ops[at].shape, lookup) for at, lookup in placed])
            estimates.update(zip((at for at, _ in placed), tabled, strict=True))
        for at, (kept, key) in enumerate(keys):
            # equal ops of this call have one estimate, so that the next call finds what was simulated with it
            estimates[at] = kept.setdefault(key, estimates[at])
        return [estimates[at] for at in range(len(ops))]

    def _in_place(self, op: Op) -> Estimate | None:
        """Return the estimate of an op from real passes; None without passes, or if the profile has a table of it."""
        times = self.profile.in_place if self.profile else None
        if times is None:
            return None
        if (message := op.message) is not None:
            seconds, in_range, wait = times.collective(op.kind, message)
            demand = Demand(held_sms=wait.core_share * self._machine.sms, waits=wait.slowed, link=1.0)
            source: Source = "measured" if in_range else "fitted"
            error = max(IN_PLACE_ERROR, COLLECTIVE_ERROR[source])
            if self.profile and self.profile.messages_wait_for_cores:
                error = SCHEDULED_ERROR
            return Estimate(seconds=seconds, error=error, source=source, demand=demand, wake_s=wait.wake_s)
        known_s = times.kernel_s(op)
        if known_s is not None:
            return Estimate(seconds=known_s, error=IN_PLACE_ERROR, source="measured", demand=WHOLE_PROCESSOR)
        lookup = op.shape.lookup
        if lookup is None or self._table(lookup.kind, lookup.of)[0] is None:
            raise times.unmeasured(op.kind)
        return None

    def _tabled(self, kind: Kind, of: TableOf, kernels: Sequence[tuple[Shape, Lookup]]) -> Iterable[Estimate]:
        own_s = [(shape, seconds) for shape, _ in kernels if (seconds := shape.engine_s(self._machine)) is not None]
        if own_s:
            return [self._kernel(shape, seconds, "fitted") for shape, seconds in own_s]
        points = [lookup.point for _, lookup in kernels]
        # one row per kernel, so that hardware arrays broadcast along the second axis
        point = {name: _rows([each[name] for each in points]) for name in points[0]}
        table, own = self._table(kind, of)
        ideal_s = TABLE_KINDS[kind].shape(of, point).roofline_s(self._machine.gpu if table is None else self._table_gpu)
        if table is None or self.profile is None:
            return [
                self._kernel(shape, _plain(row / self._machine.memory_efficiency) * lookup.times, "roofline")
                for (shape, lookup), row in zip(kernels, ideal_s, strict=True)
            ]
        fall = MEASURED_FALL if own and table.beyond == "fitted" else 1.0
        table = _rising(table, kind, of, self.profile.reference, fall)
        ratio, in_range = table.ratio(**point)
        return [
            self._kernel(shape, _plain(row) * lookup.times, "transferred")
            if not (self._here and own) or lookup.carried_over
            else self._kernel(shape, _plain(row) * lookup.times, table.beyond, measured)
            for (shape, lookup), row, measured in zip(kernels, ideal_s * ratio, in_range, strict=True)
        ]

    def _table(self, kind: Kind, of: TableOf) -> tuple[RatioTable | None, bool]:
        """Return the table of a kernel, and whether it is of this precision: if not, another's ratios hold."""
        return self.profile.table(kind, of, self._gpu_spec) if self.profile else (None, False)

    def _slowed_s(self, shape: Shape, seconds: Number) -> Number:
        """Return how much longer a kernel takes at the clock the GPU keeps up while prompts keep tensor cores busy."""
        if not any_true(shape.duty > 0.0):
            return 0.0
        gpu, work = self.hardware.gpu, shape.work
        # the memory keeps its own clock
        multiplies = minimum(shape.arithmetic_s(gpu, work) * gpu.hbm_bandwidth_Bps / work.moved_bytes, 1.0)
        return shape.duty * seconds * maximum(multiplies / self.hardware.stack.sustained_rate - 1.0, 0.0)

    def _kernel(self, shape: Shape, seconds: Number, source: Source, measured: NDArray[np.bool_] = NOWHERE) -> Estimate:
        """Estimate a kernel from its time in a table or by the roofline; `measured` are configurations in range."""
        everywhere, anywhere = bool(measured.all()), bool(measured.any())
        factor = self.hardware.stack.kernel_factor * shape.stack_factor(self._machine, tabled=source != "roofline")
        slowed_s = self._slowed_s(shape, seconds)
        seconds = (seconds + slowed_s) * factor
        if source in ("fitted", "transferred") and not everywhere:
            longer_s = maximum(seconds, shape.least_s(self._table_gpu))
            seconds = np.where(measured, seconds, longer_s) if anywhere else longer_s
        error: Number = self._kernel_error["measured" if everywhere else source]
        if anywhere and not everywhere:
            error = np.where(measured, self._kernel_error["measured"], error)
        if (outlasted := shape.outlasts) is not None:
            passes, other = outlasted
            (least,) = self.estimates([Op(name="least", kind="attention", shape=other)])
            seconds = where(passes, maximum(seconds, least.seconds), seconds)
        if (replaced := shape.replaced) is not None:
            passes, other = replaced
            (instead,) = self.estimates([Op(name="instead", kind="attention", shape=other)])
            if np.all(passes):
                return instead
            seconds = where(passes, instead.seconds, seconds)
        return Estimate(
            seconds=seconds,
            slowed_s=slowed_s * factor,
            error=error,
            source="measured" if measured[0] else source,
            demand=self._demand(shape, seconds),
        )

    def _demand(self, shape: Shape, seconds: Number) -> Demand:
        if self.profile and self.profile.in_place:
            return WHOLE_PROCESSOR
        work = shape.work
        arithmetic = 0.0 if shape.rows is None else shape.arithmetic_s(self.hardware.gpu, work) / seconds
        memory = self._memory_share(work.moved_bytes, seconds)
        return kernel_demand(shape, self.hardware.overlap, memory, arithmetic)

    def _send(self, message_bytes: Number) -> Estimate:
        hardware, across = self.hardware, self._sends_across
        seconds: Number = 0.0
        for tier, share in ((hardware.intra.among(2), 1.0 - across), (hardware.inter, across)):
            if share:
                # an all-reduce goes to and fro
                seconds = seconds + share * (tier.allreduce_floor_s / 2.0 + message_bytes / tier.bandwidth_Bps)
        seconds = hardware.stack.collective_factor * seconds
        return Estimate(
            seconds=seconds,
            error=COLLECTIVE_ERROR["roofline"],
            source="roofline",
            algorithm="nccl",
            demand=Demand(
                held_sms=1.0,
                waits=waiting_share(NCCL_ENDS, seconds, self.hardware.overlap),
                memory=self._memory_share(message_bytes, seconds),
                link=1.0,
            ),
        )

    def _collectives(self, kind: CollectiveKind, shapes: Sequence[CollectiveShape]) -> Sequence[Estimate]:
        """Estimate collectives that differ in their messages only: several numbers if there is one configuration."""
        if kind == "send":
            return [self._send(shape.message_bytes) for shape in shapes]
        network = self._networks.get(shapes[0].group)
        if network is None:
            raise ValueError(f"{kind}: a collective on one rank")
        message = np.atleast_1d(shapes[0].message_bytes)
        apart = not self._varied and len(message) == 1
        if apart:
            message = np.ravel([shape.message_bytes for shape in shapes])
        if kind == "all_reduce_norm":
            fused_s, apart_s = (
                self._machine.floor_s + self._machine.traffic_s(traffic * message)
                for traffic in (FUSED_NORM_TRAFFIC, NORM_TRAFFIC)
            )
            times = network.with_norm(message, fused_s, apart_s)
            times = replace(times, in_range=np.zeros(1, bool))
        else:
            times = network.times(kind, message, kernel=shapes[0].kernel)
        error = times.error
        if times.in_range.any():
            # another machine with such links may be as fast as the formula
            over = network.over_links(kind, times, message)
            odd = times.in_range & (over > ODD)
            error = np.where(odd, over - 1.0, error) if odd.any() else error
        seconds = self.hardware.stack.collective_factor * times.seconds
        overlap = self.hardware.overlap
        sms = times.choose([collective_sms(name, message, overlap) for name in times.algorithms])
        traffic = times.choose(
            [
                collective_traffic_bytes(name, message, overlap) + network.copied_bytes(name, message)
                for name in times.algorithms
            ]
        )
        columns: list[Any] = [
            seconds,
            error,
            times.choose([float(name in INLINE) for name in times.algorithms]),
            # kernels keep at least one
            minimum(sms, self._machine.sms - 1),
            waiting_share(network.memory_steps(kind, times), seconds, overlap),
            self._memory_share(traffic, seconds),
        ]
        rows: Iterable[Any]
        origins: Iterable[tuple[Source, str]]
        if apart:
            rows, origins = zip(*(listed(column, len(shapes)) for column in columns), strict=True), times.origins()
        else:
            rows = [[_plain(np.atleast_1d(column)) for column in columns]] * len(shapes)
            origins = [(next(times.origins())[0], times.most_common)] * len(shapes)
        return [
            Estimate(
                seconds=own_s,
                error=error,
                source=source,
                algorithm=algorithm,
                inline=inline,
                demand=(_sent_demand if apart else _demand_of_sent)(held, waits, memory),
            )
            for (own_s, error, inline, held, waits, memory), (source, algorithm) in zip(rows, origins, strict=True)
        ]

    def _memory_share(self, moved_bytes: Number, seconds: Number) -> Number:
        return minimum(1.0, self._machine.traffic_s(moved_bytes) / seconds)


def _demand_of_sent(held_sms: Number, waits: Number, memory: Number) -> Demand:
    return Demand(held_sms=held_sms, waits=waits, memory=memory, link=1.0)


# one object for equal numbers, by which simulations are kept
_sent_demand = lru_cache(maxsize=_MOST_KEPT)(_demand_of_sent)


@cache
def _values_of(kind: type[Shape]) -> Callable[[Shape], tuple[Any, ...]]:
    names = [each.name for each in fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda shape: (getattr(shape, names[0]),)


def _key(shape: Shape) -> tuple[object, ...]:
    """Return what tells an op from others by its size, of one pass or of many."""
    kind = type(shape)
    values = _values_of(kind)(shape)
    if np.ndarray in map(type, values):
        values = tuple((each.dtype, each.tobytes()) if isinstance(each, np.ndarray) else each for each in values)
    # a single row takes another kernel than a single one on average
    return kind, type(getattr(shape, "m", None)), values


@lru_cache(maxsize=64)
def _all_kept(figures: tuple[object, ...]) -> _Kept:
    return {}


def _kept(figures: tuple[object, ...]) -> _Kept:
    """Return where estimates are kept that depend on these figures, besides the size of the op."""
    kept = _all_kept(figures)
    if len(kept) > _MOST_KEPT:
        kept.clear()
    return kept


@lru_cache(maxsize=128)
def _rising(table: RatioTable, kind: Kind, table_of: TableOf, reference: Gpu, fall: float) -> RatioTable:
    """Return a table whose times fall by at most a factor as batch, prompts or contexts grow."""
    grid = dict(zip(table.names, np.ix_(*table.axes), strict=True))
    ideal_s = TABLE_KINDS[kind].shape(table_of, grid).roofline_s(reference)
    return table.rising(ideal_s, [name for name in table.names if name in LOAD_AXES], fall)


def _rows(values: Sequence[ArrayLike]) -> Floats:
    if not any(np.ndim(value) for value in values):
        return np.array(values, np.float64)[:, np.newaxis]
    return np.stack(np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values)))


def _plain(values: Floats) -> Number:
    return float(values[0]) if values.shape == (1,) else values
