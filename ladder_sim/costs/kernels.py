"""The cost model: measured times if a profile has a table, else the roofline; one formula for both.

Every kernel's time is ``roofline(this GPU) * ratio``, with the ratio measured / roofline from the profile's tables. On
the measured GPU that is the measurement; on another it is the measurement carried over by the roofline ratio.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.costs.collectives.algorithms import INLINE
from ladder_sim.costs.collectives.network import ODD, Network
from ladder_sim.costs.collectives.times import COLLECTIVE_ERROR
from ladder_sim.costs.contention import (
    NCCL_ENDS,
    collective_sms,
    collective_traffic_bytes,
    kernel_demand,
    waiting_share,
)
from ladder_sim.costs.estimate import Estimate, Source
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.profile import HBM_EFFICIENCY, CalibrationProfile
from ladder_sim.costs.roofline import (
    ATTENTION,
    GPU_FIGURES,
    MOE_KERNELS,
    Experts,
    Gpu,
    Kind,
    TabledShape,
    TableOf,
    coordinates,
    prompt_len,
    roofline_s,
    splits_blocks,
    table_key,
    table_shape,
)
from ladder_sim.des.shared import Demand, Floats, Number, any_true, maximum, minimum
from ladder_sim.errors import ProfileError, UsageError
from ladder_sim.graph.ops import CollectiveKind, Op
from ladder_sim.graph.shapes import (
    AttentionShape,
    BmmShape,
    CachedAttention,
    CollectiveShape,
    GemmShape,
    Group,
    MlaShape,
    MoeShape,
    SampleShape,
    Shape,
)
from ladder_sim.specs.cluster import THIS_MACHINE
from ladder_sim.specs.scenario import HOPPER, Scenario

# scores, softmax with mask, values; keys and values are read expanded
MATH_ATTENTION_KERNELS = 3
# of the bf16 peak, what the same GPU multiplies in 32 bits (datasheets: A100 19.5 of 312 TFLOP/s, H100 67 of 989), in
# tiles of so many rows and columns (cuBLAS)
FP32_SHARE, TILE = 1.0 / 16.0, 128
# rate at which keys and values that are expanded to every query head are read, of the memory's bandwidth: 201 MB in
# 46.2 us on an H100 (h100_beside, kernels_of_a_layer.csv)
CACHE_RATE = 1.3
# Choosing among the 200 most likely tokens as gpt-fast does, compiled: 23 kernels. Some of them read a row of logits by
# one block, at 1.3 G logits/s together, and all move 43 bytes a logit. Chosen on a Hopper GPU, batch 1 to 256 and
# vocabularies of 32,000 and 128,256, which they meet within 6 % (tests/data/sampling_h200.csv)
TOP_K_KERNELS, TOP_K_LOGIT_S, TOP_K_BYTES = 23, 0.765e-9, 43.0
# axes of tables that batch, prompts and contexts go along, and how far measured times may fall along them. A library
# may take another kernel for the next size (NVFP4 GEMMs on GB200 take 11 % less for 16 rows than for 8), but what it
# takes longer for could be padded; TPOT of 1,576 servings is as far off (7.0 and 8.1 %) as with all falls that were
# measured. What was not measured, of a format or any GPU with such tables, does not fall at all
LOAD_AXES = ("m", "tokens", "batch", "batch_heads", "batch_kv_heads", "q_len", "kv_len")
MEASURED_FALL = 1.04
# kinds whose ops are small kernels where the profile has no table of them
SMALL_WITHOUT_TABLE = ("math_attention_decode", "sample")
# 90 % interval as a fraction either way. Measured: independent tables of one H100 agree within 15 %. The others are
# judgement, widening with the distance from a measurement.
KERNEL_ERROR: Mapping[Source, float] = {"measured": 0.15, "fitted": 0.2, "transferred": 0.3, "roofline": 0.4}

# the same if a fit to end-to-end runs has set the level: what is left is one shape relative to another. Nine tenths of
# the bf16 GEMM rows left out of the H100 tables lie within 5 %; the others are judgement
CALIBRATED_KERNEL_ERROR: Mapping[Source, float] = {**KERNEL_ERROR, "measured": 0.05, "fitted": 0.1, "roofline": 0.1}

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
# rows to a multiple of which DeepGEMM's contiguous layout pads the tokens of every expert of a rank (vLLM 0.12.0,
# fused_moe/deep_gemm_utils.py, compute_aligned_M)
EXPERT_PADDING = 128
# traffic of add and norm in a kernel of their own: output and residual are read, residual and norm written
NORM_TRAFFIC = 4.0


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
        # measured tables
        self.profile = profile
        self._gpu_spec = gpu = scenario.cluster.gpu
        self._sms = gpu.sms
        hopper = gpu.compute_capability == HOPPER
        self._padded_share = scenario.stack.padded_share if hopper else 0.0
        plan = scenario.plan
        ranks: dict[Group, int] = {"tensor": plan.tp, "experts": plan.attention_dp}
        self._networks = {
            group: Network(scenario, profile, self.hardware, group) for group, count in ranks.items() if count > 1
        }
        self._sends_across = scenario.sends_across
        self._table_gpu = _table_gpu(self.hardware.gpu, profile)
        self._here = profile is not None and self.hardware.gpu.same_as(Gpu.of(profile.cluster.gpu))
        self.measured_here = profile is not None and self.hardware.same_node(profile.cluster)
        # measured collectives inside a node; None: there are no collectives, or only formulas
        self.links_profile = next((network.profile for network in self._networks.values()), None)
        self._efficiency = profile.memory_efficiency if profile else HBM_EFFICIENCY
        self._kernel_error = CALIBRATED_KERNEL_ERROR if self._calibrated(scenario) else KERNEL_ERROR

    def _calibrated(self, scenario: Scenario) -> bool:
        """Whether the kernels of this stack on this GPU were fitted to end-to-end runs."""
        if self.profile is None or not self._here:
            return False
        stack_fit = self.profile.fit_of(scenario.stack.name)
        return stack_fit is not None and stack_fit.base == self.profile.tables_of

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Return the estimates of ops, each alone on its GPU; each table is looked up once.

        Shapes may hold arrays of one size per configuration. `source` is only valid for a single one.
        """
        lookups: dict[tuple[Kind, TableOf], list[int]] = defaultdict(list)
        estimates: dict[int, Estimate] = {}
        for number, op in enumerate(ops):
            if in_place := self._in_place(op):
                estimates[number] = in_place
                continue
            key = table_key(op.shape)
            if key is None or (key[0] in SMALL_WITHOUT_TABLE and self._table(*key)[0] is None):
                estimates[number] = self._untabled(op.kind, op.shape)
            else:
                lookups[key].append(number)
        for key, numbers in lookups.items():
            shapes = [cast(TabledShape, ops[number].shape) for number in numbers]
            estimates.update(zip(numbers, self._tabled(*key, shapes), strict=True))
        return [estimates[number] for number in range(len(ops))]

    def _in_place(self, op: Op) -> Estimate | None:
        """Return the estimate of an op from real passes; None without passes, or if their table holds the GEMM."""
        times = self.profile.in_place if self.profile else None
        if times is None:
            return None
        if isinstance(op.shape, CollectiveShape):
            seconds, in_range, wait = times.collective(op.kind, op.shape)
            demand = Demand(held_sms=wait.core_share * self._sms, waits=wait.slowed, link=1.0)
            source: Source = "measured" if in_range else "fitted"
            error = max(IN_PLACE_ERROR, COLLECTIVE_ERROR[source])
            return Estimate(seconds=seconds, error=error, source=source, demand=demand, wake_s=wait.wake_s)
        known_s = times.kernel_s(op)
        if known_s is not None:
            return Estimate(seconds=known_s, error=IN_PLACE_ERROR, source="measured", demand=WHOLE_PROCESSOR)
        if not isinstance(op.shape, GemmShape) or self._table("gemm", op.shape.format)[0] is None:
            raise times.unmeasured(op.kind)
        return None

    def _tabled(self, kind: Kind, table_of: TableOf, shapes: Sequence[TabledShape]) -> Iterable[Estimate]:
        columns = [coordinates(shape) for shape in shapes]
        # one row per shape, so that hardware arrays broadcast along the second axis
        point = {name: _rows([column[name] for column in columns]) for name in columns[0]}
        if self._padded_share and isinstance(table_of, Experts) and table_of.format == "fp8-block":
            return [self._kernel(shape, self._padded_s(cast(MoeShape, shape)), "fitted") for shape in shapes]
        table, own = self._table(kind, table_of)
        gpu = self._table_gpu if table is not None else self.hardware.gpu
        seconds = roofline_s(table_shape(kind, table_of, point), gpu)
        if table is None or self.profile is None:
            return [
                self._kernel(shape, _plain(row / self._efficiency), "roofline")
                for shape, row in zip(shapes, seconds, strict=True)
            ]
        fall = MEASURED_FALL if own and table.beyond == "fitted" else 1.0
        table = _rising(table, kind, table_of, self.profile.reference, fall)
        ratio, in_range = table.ratio(**point)
        return [
            self._kernel(shape, _plain(row), "transferred")
            if not (self._here and own) or (isinstance(shape, MoeShape) and splits_blocks(shape))
            else self._kernel(shape, _plain(row), table.beyond, measured)
            for shape, row, measured in zip(shapes, seconds * ratio, in_range, strict=True)
        ]

    def _padded_s(self, shape: MoeShape) -> Number:
        """Return the seconds of experts with padded tokens, and of the memory-bound kernels around their two GEMMs."""
        experts, width = shape.experts / shape.ep, shape.width / shape.expert_tp
        rows: Any = shape.tokens * shape.top_k / shape.ep + experts * (EXPERT_PADDING - 1)
        rows = np.ceil(rows / EXPERT_PADDING) * EXPERT_PADDING
        flops = 6.0 * rows * shape.hidden * width
        moved_bytes = rows * (2.0 * shape.hidden + 3.0 * width) * shape.output_element_bytes
        multiplied_s = flops / (self._padded_share * self.hardware.gpu.peak_flops(shape))
        return _number(multiplied_s + self._traffic_s(moved_bytes) + (MOE_KERNELS + 1) * self._floor_s)

    def _of_looked_up(self, shape: Shape, seconds: Number) -> Number:
        """Return the seconds of a kernel that tables hold at another size, from the `seconds` at that size."""
        if isinstance(shape, GemmShape):
            # one of its chunks
            return seconds * shape.chunks
        part: Number = 1.0
        if isinstance(shape, CachedAttention) and shape.is_prompt:
            if shape.shares_step:
                # its share of the whole prompt, as which it was looked up
                part = part * shape.q_len / prompt_len(shape)
            if isinstance(shape, AttentionShape) and shape.windowed:
                # likewise, of attention to all tokens
                part = part * shape.attended / (shape.kv_len - (shape.q_len - 1) / 2.0)
        return seconds * part

    def _slowed_s(self, shape: Shape, seconds: Number) -> Number:
        """Return how much longer a kernel takes at the rate the GPU keeps up while prompts keep tensor cores busy."""
        share = self.hardware.stack.sustained_share
        if not isinstance(shape, GemmShape) or not any_true(share < 1.0) or not any_true(shape.duty > 0.0):
            return 0.0
        lasting_s = shape.flops / (share * self.hardware.gpu.peak_flops(shape))
        if isinstance(share, np.ndarray):
            lasting_s = np.where(share < 1.0, lasting_s, 0.0)
        return shape.duty * maximum(lasting_s - seconds, 0.0)

    def _table(self, kind: Kind, table_of: TableOf) -> tuple[RatioTable | None, bool]:
        """Return the table of a kernel, and whether it is of this precision: if not, its bf16 ratios hold."""
        if self.profile is None:
            return None, False
        if isinstance(table_of, Experts):
            stand_in = self.profile.moe.format_for(table_of.format, self._gpu_spec)
            return self.profile.moe.experts_table(table_of._replace(format=stand_in)), stand_in == table_of.format
        if kind == "gemm":
            tables = self.profile.gemm
        elif kind == "sample":
            tables = self.profile.sampling
        elif kind in ATTENTION:
            phase, kernel = ATTENTION[kind]
            tables = getattr(self.profile, phase).get(kernel, {})
        else:
            tables = self.profile.moe.tables.get(kind, {})
        nearest = "fp8" if (kind, table_of) == ("bmm", "fp8-block") else "bf16"
        return tables.get(table_of, tables.get(nearest)), table_of in tables

    def _untabled(self, kind: str, shape: Shape) -> Estimate:
        if isinstance(shape, CollectiveShape):
            if kind == "send":
                return self._send(shape.message_bytes)
            return self._collective(cast(CollectiveKind, kind), shape)
        if isinstance(shape, AttentionShape):
            return self._kernel(shape, self._math_attention_s(shape), "roofline")
        if isinstance(shape, SampleShape) and shape.sampling == "top-k":
            return self._kernel(shape, self._top_k_s(shape), "roofline")
        floor_s = self._floor_s
        if kind == "quantize":
            floor_s = floor_s + self.hardware.stack.quantize_s
        seconds = floor_s + maximum(self._traffic_s(shape.moved_bytes), shape.flops / self.hardware.gpu.bf16_flops)
        return self._kernel(shape, seconds, "roofline")

    def _top_k_s(self, shape: SampleShape) -> Number:
        """Return the seconds of choosing among the most likely tokens, without a table of it."""
        row_s = TOP_K_LOGIT_S * shape.vocab * -(-shape.batch // self._sms)
        return TOP_K_KERNELS * self._floor_s + row_s + self._traffic_s(TOP_K_BYTES * shape.batch * shape.vocab)

    def _math_attention_s(self, shape: AttentionShape) -> Number:
        """Return the seconds of attention by separate kernels, which no table holds."""
        gpu, stack = self.hardware.gpu, self.hardware.stack
        token = replace(shape, q_len=1) if shape.is_prompt else shape
        read_s = maximum(
            self._traffic_s(token.moved_bytes), token.expanded_bytes / (CACHE_RATE * gpu.hbm_bandwidth_Bps)
        )
        floor_s = MATH_ATTENTION_KERNELS * self._floor_s
        several = _number(np.where(shape.batch > 1, 1.0, 0.0))
        token_s = floor_s + stack.batched_attention_s * several + read_s * stack.attention_factor
        if not shape.is_prompt:
            return token_s
        # scores and values, each in tiles of so many of its rows and columns; one that is not full takes as long
        multiplied_s: Number = 0.0
        for columns in (shape.kv_len, shape.head_dim):
            tiles: Any = shape.batch * shape.heads * -(-shape.q_len // TILE) * -(-columns // TILE)
            slots = -(-tiles // self._sms) * self._sms * np.minimum(shape.q_len, TILE) * np.minimum(columns, TILE)
            filled = shape.batch * shape.heads * shape.q_len * columns / slots
            multiplied_s = multiplied_s + shape.flops / (2.0 * FP32_SHARE * gpu.bf16_flops * filled)
        return maximum(token_s, floor_s + multiplied_s + self._traffic_s(shape.moved_bytes))

    def _kernel(self, shape: Shape, seconds: Number, source: Source, measured: NDArray[np.bool_] = NOWHERE) -> Estimate:
        """Estimate a kernel from its time in a table or by the roofline; `measured` are configurations in range."""
        everywhere, anywhere = bool(measured.all()), bool(measured.any())
        seconds = self._of_looked_up(shape, seconds)
        factor = self.hardware.stack.kernel_factor * self._stack_factor(shape, source)
        slowed_s = self._slowed_s(shape, seconds)
        seconds = (seconds + slowed_s) * factor
        if source in ("fitted", "transferred") and not everywhere:
            longer_s = maximum(seconds, self._least_s(shape))
            seconds = np.where(measured, seconds, longer_s) if anywhere else longer_s
        error: Number = self._kernel_error["measured" if everywhere else source]
        if anywhere and not everywhere:
            error = np.where(measured, self._kernel_error["measured"], error)
        if isinstance(shape, AttentionShape) and shape.shares_step:
            seconds = self._chunk_s(shape, seconds)
        return Estimate(
            seconds=seconds,
            slowed_s=slowed_s * factor,
            error=error,
            source="measured" if measured[0] else source,
            demand=self._demand(shape, seconds),
        )

    def _demand(self, shape: Shape, seconds: Number) -> Demand:
        """Return what a kernel of so many seconds takes of its GPU."""
        if self.profile and self.profile.in_place:
            return WHOLE_PROCESSOR
        multiplied_s: Number = 0.0
        if isinstance(shape, GemmShape | BmmShape | MoeShape):
            multiplied_s = shape.flops / self.hardware.gpu.peak_flops(shape)
        memory = self._memory_share(shape.moved_bytes, seconds)
        return kernel_demand(shape, self.hardware.overlap, memory, multiplied_s / seconds)

    def _least_s(self, shape: Shape) -> Number:
        """Return the lower bound of a kernel's seconds: its arithmetic and memory traffic at the table's figures."""
        if not isinstance(shape, GemmShape | BmmShape | AttentionShape | MlaShape):
            return 0.0
        gpu = self._table_gpu
        return maximum(shape.flops / gpu.peak_flops(shape), shape.stored_bytes / gpu.hbm_bandwidth_Bps)

    def _chunk_s(self, shape: AttentionShape, share_s: Number) -> Number:
        """Return the seconds of a chunk: the share `share_s` of its prompt's, but at least those of one token."""
        continues: Any = prompt_len(shape) > shape.q_len
        if not any_true(continues):
            return share_s
        token_shape = replace(shape, q_len=1, shares_step=False)
        (token,) = self.estimates([Op(name="token", kind="attention", shape=token_shape)])
        longer_s = maximum(share_s, token.seconds)
        return np.where(continues, longer_s, share_s) if isinstance(longer_s, np.ndarray) else longer_s

    def _stack_factor(self, shape: Shape, source: Source) -> Number:
        """Time of the stack's kernel relative to the table's or the roofline's."""
        stack = self.hardware.stack
        if isinstance(shape, CachedAttention):
            if shape.is_prompt:
                return stack.prompt_factor
            # of math attention without a table the traffic alone has it
            has_factor = isinstance(shape, MlaShape) or shape.kernel == "flash" or source != "roofline"
            return stack.attention_factor if has_factor else 1.0
        if not isinstance(shape, GemmShape | BmmShape):
            return 1.0
        if isinstance(shape.m, int) and shape.m == 1:
            return stack.gemv_factor
        gpu = self.hardware.gpu
        memory_bound = shape.flops / gpu.peak_flops(shape) < shape.moved_bytes / gpu.hbm_bandwidth_Bps
        if isinstance(memory_bound, bool):
            return stack.gemm_factor if memory_bound else stack.prompt_factor
        several = np.where(memory_bound, stack.gemm_factor, stack.prompt_factor)
        return np.where(np.asarray(shape.m) == 1, stack.gemv_factor, several)

    def _send(self, message_bytes: Number) -> Estimate:
        """Return the seconds of a send between pipeline stages: an average one, where some are in another node."""
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

    def _collective(self, kind: CollectiveKind, shape: CollectiveShape) -> Estimate:
        network, message_bytes = self._networks.get(shape.group), shape.message_bytes
        if network is None:
            raise ValueError(f"{kind}: a collective on one rank")
        message = np.atleast_1d(message_bytes)
        if kind == "all_reduce_norm":
            fused_s, apart_s = (
                self._floor_s + self._traffic_s(traffic * message_bytes)
                for traffic in (FUSED_NORM_TRAFFIC, NORM_TRAFFIC)
            )
            times = network.with_norm(message, fused_s, apart_s)
        else:
            times = network.times(kind, message, kernel=shape.kernel)
        if kind == "all_reduce_norm":
            times = replace(times, in_range=np.zeros(1, bool))
        source: Source = "measured" if times.in_range[0] else times.source
        error = times.error
        if times.in_range.any():
            # another machine with such links may be as fast as the formula
            over = network.over_links(kind, times, message)
            odd = times.in_range & (over > ODD)
            error = np.where(odd, over - 1.0, error) if odd.any() else error
        seconds = self.hardware.stack.collective_factor * _plain(times.seconds)
        overlap = self.hardware.overlap
        sms = times.choose([collective_sms(name, message_bytes, overlap) for name in times.algorithms])
        traffic = times.choose(
            [
                collective_traffic_bytes(name, message_bytes, overlap) + network.copied_bytes(name, message_bytes)
                for name in times.algorithms
            ]
        )
        return Estimate(
            seconds=seconds,
            error=_plain(np.atleast_1d(error)),
            source=source,
            algorithm=times.most_common,
            inline=times.choose([float(name in INLINE) for name in times.algorithms]),
            demand=Demand(
                # kernels keep at least one
                held_sms=_number(minimum(sms, self._sms - 1)),
                waits=waiting_share(
                    _plain(np.atleast_1d(network.memory_steps(kind, times))), seconds, self.hardware.overlap
                ),
                memory=self._memory_share(traffic, seconds),
                link=1.0,
            ),
        )

    def _memory_share(self, moved_bytes: Number, seconds: Number) -> Number:
        return minimum(1.0, self._traffic_s(moved_bytes) / seconds)

    @property
    def _floor_s(self) -> Number:
        """Seconds of a small kernel of the stack."""
        return self.hardware.stack.small_kernel_factor * self.hardware.gpu.kernel_s

    def _traffic_s(self, moved_bytes: Number) -> Number:
        """Return the seconds of memory traffic at the rate that memory-bound kernels reach."""
        return moved_bytes / (self._efficiency * self.hardware.gpu.hbm_bandwidth_Bps)


def _table_gpu(gpu: Gpu, profile: CalibrationProfile | None) -> Gpu:
    """Return the figures with which a profile's rooflines are drawn.

    A table's ratios belong to the figures in its profile. The measured cluster may round them otherwise, so another
    GPU's figures enter relative to that cluster's.
    """
    if profile is None:
        return gpu
    relative = {name: getattr(gpu, name) / getattr(profile.cluster.gpu, name) for name in GPU_FIGURES}
    return Gpu(**{name: getattr(profile.reference, name) * ratio for name, ratio in relative.items()})


@lru_cache(maxsize=128)
def _rising(table: RatioTable, kind: Kind, table_of: TableOf, reference: Gpu, fall: float) -> RatioTable:
    """Return a table whose times fall by at most a factor as batch, prompts or contexts grow."""
    grid = dict(zip(table.names, np.ix_(*table.axes), strict=True))
    ideal_s = roofline_s(table_shape(kind, table_of, grid), reference)
    return table.rising(ideal_s, [name for name in table.names if name in LOAD_AXES], fall)


def _rows(values: Sequence[ArrayLike]) -> Floats:
    """Stack numbers, or arrays of one number per configuration."""
    if not any(np.ndim(value) for value in values):
        return np.array(values, np.float64)[:, np.newaxis]
    return np.stack(np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values)))


def _number(value: Any) -> Number:
    """Return a plain number instead of a numpy scalar, which is slow to compute with."""
    return value if isinstance(value, np.ndarray) and value.ndim else float(value)


def _plain(values: Floats) -> Number:
    """Return a plain number instead of an array of one configuration."""
    return float(values[0]) if values.shape == (1,) else values
