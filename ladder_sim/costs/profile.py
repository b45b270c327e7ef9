"""Calibration profiles: what was measured on one machine, as costs read it.

A profile is a gzipped JSON file (plain JSON works too), read and written by `ladder_sim.costs.profile_file`. It is the
contract between whoever measures (an importer, a calibration run) and whoever predicts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from ladder_sim.costs.collectives.algorithms import MeasuredCollective, measured_collectives
from ladder_sim.costs.experts import ANY_LAYER, experts_table
from ladder_sim.costs.in_place import InPlace
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.hf.quantization import DType
from ladder_sim.kernels import GEMM_FORMATS, TABLE_KINDS, Experts, Gpu, Kind, TableOf
from ladder_sim.specs.cluster import ClusterSpec, GpuSpec
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import AttentionKernel
from ladder_sim.specs.workload import Workload

# in place of the name of a profile: datasheet figures only
NO_PROFILE = "none"
# the collectives of a profile
CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
# those of tensor parallelism, which `calibrate run` measures
COLLECTIVES: tuple[CollectiveName, ...] = ("all_reduce", "all_gather", "reduce_scatter")

# where profiles hold tables of attention that is not latent: section and kernel
ATTENTION: Mapping[Kind, tuple[str, AttentionKernel]] = {
    "attention_prefill": ("attention_prefill", "flash"),
    "attention_decode": ("attention_decode", "flash"),
    "math_attention_decode": ("attention_decode", "math"),
}

# kinds of tables that only models with experts, latent or sparse attention, or recurrent states need
MOE_KINDS = tuple(kind for kind in TABLE_KINDS if kind not in ("gemm", "sample", "moe", *ATTENTION))

# a figure is identified if the runs leave at most this share of its prior's spread
IDENTIFIED = 0.7
# in `CalibrationProfile.overheads`: spread of the logarithm of a kernel's time
JITTER_KEY = "jitter_sigma"
# there too, in place of the cluster's figure of this name
RANK_SKEW = "rank_skew"
# memory-bound H100 kernels use 2.93 of 3.35 TB/s (GEMM tables of aiconfigurator-core 0.12.0, m <= 16); a
# profile with a GEMM table has a figure of its own
HBM_EFFICIENCY = 2.93 / 3.35
# weights of that many rows and columns (0.5 GB in bf16) are streamed from memory: no cache holds them
STREAMING_GEMM = 16384.0


class _Positive:
    """Marks a number that must be above 0; pydantic, which reads profile files, asks it for the rule."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        # far outside anything measured, near enough that ratios and their logarithms stay finite
        return {**handler(source), "gt": 1e-30, "lt": 1e30}


Positive = Annotated[float, _Positive()]


def run_sizes(scenario: Scenario) -> dict[str, int]:
    """Return the sizes of a scenario by which compared runs span a range."""
    workload = scenario.workload
    return {
        "model_size": scenario.model.parameters,
        "tp": scenario.plan.tp,
        "batch": workload.in_flight,
        "prompt": workload.prompt,
        "gen": workload.gen,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFigure:
    """One hardware figure (`ladder_sim.costs.hardware.Hardware.figures`), as fitted."""

    value: Positive
    """SI units."""
    default: Positive
    """What the catalog stated, and the prior's median; a scenario that states or sets something else keeps its own."""
    prior_log_sd: Positive
    """Spread of the prior, standard deviation of the logarithm."""
    log_sd: Positive
    """Spread that the runs leave."""

    @property
    def identified(self) -> bool:
        """Whether the runs say more about it than the prior."""
        return self.log_sd <= IDENTIFIED * self.prior_log_sd


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalScale:
    """By how much nominal 90 % intervals were too narrow (above 1) or too wide for runs that a fit had not seen."""

    rate: Positive = 1.0
    """Scale of intervals of throughputs."""
    speedup: Positive = 1.0
    """Scale of intervals of speedups over standard."""
    tpot: Positive = 1.0
    """Scale of intervals of times per token."""
    ttft: Positive = 1.0
    """Scale of intervals of times to first token."""

    def widest(self, other: "IntervalScale") -> "IntervalScale":
        """Return the larger of each scale."""
        names = (each.name for each in fields(self))
        return IntervalScale(**{name: max(getattr(self, name), getattr(other, name)) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFit:
    """A fit to end-to-end runs of one stack on the GPU of one profile."""

    stack: str
    """Catalog id of the stack that ran."""
    allreduce: str = ""
    """All-reduce of the runs; empty if the file does not say."""
    base: str
    """Profile whose tables the figures belong to."""
    runs: str
    """Data set of the runs."""
    protocol: str
    """Rule by which its rows were chosen for the fit; empty: all."""
    rows: int
    """Runs in the fit."""
    models: tuple[str, ...]
    """Catalog ids of the models in those runs."""
    tps: tuple[int, ...]
    """Their tensor-parallel degrees."""
    host_tps: tuple[int, ...]
    """Tensor-parallel degrees of runs without peer-to-peer access."""
    families: tuple[str, ...] = ()
    """Families of those models; empty, as the next three: the file does not say."""
    nodes: tuple[int, ...] = ()
    """Nodes that their groups spanned."""
    rewired_nodes: tuple[int, ...] = ()
    """Nodes that groups spanned in runs of wirings that change communication, seen by the fit or not."""
    dtypes: tuple[DType, ...] = ()
    """Their precisions."""
    sizes: Mapping[str, tuple[Positive, Positive]] = field(default_factory=dict)
    """Smallest and largest `run_sizes` in the data set, in the fit or not; empty: the file does not say."""
    cost: float
    """Half the sum of the fit's squared residuals, in their standard deviations, the priors' included."""
    figures: Mapping[str, FittedFigure]
    """Fitted figures by name."""
    draws: tuple[tuple[Positive, ...], ...]
    """Sets of values that fit the runs about as well (bootstrap), each in the order of `figures`."""
    fitted_scale: IntervalScale
    """For the models and degrees of the fit, at batches that it may not have seen."""
    other_scale: IntervalScale
    """For other models and degrees."""
    host_scale: IntervalScale | None = None
    """For those without peer-to-peer access; None: as with it."""
    left_out: Mapping[str, Positive] = field(default_factory=dict)
    """Mean absolute error of figures of runs that the fit has not seen, as a fraction, by the names of `IntervalScale`;
    empty: not known."""
    left_out_models: tuple[str, ...] = ()
    """Catalog ids of the models in those runs."""

    @property
    def compared_models(self) -> tuple[str, ...]:
        """Models of all runs that predictions were compared with, those that the fit has not seen first."""
        return tuple(dict.fromkeys((*self.left_out_models, *self.models)))

    def scale(self, model: str, tp: int, *, p2p: bool = True) -> IntervalScale:
        """Return the scale of intervals for a model at a degree, with peer-to-peer access or without."""
        if model in self.models and tp in self.tps:
            return self.fitted_scale
        return self.other_scale if p2p or self.host_scale is None else self.host_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """Where some of a profile's figures come from."""

    what: str
    """Which figures."""
    version: str
    """Version of the package or program that measured or published the figures."""
    licence: str
    """SPDX id of the terms they are published under; empty: own measurements."""
    files: tuple[str, ...]
    """Files of the source that were read."""
    citation: str
    """How to find it: a package name and version, a URL, a paper."""
    notes: tuple[str, ...] = ()
    """What was left out of it or changed, and why."""


# no slots: tables that were made of others are kept
@dataclass(frozen=True, kw_only=True, eq=False)
class MoeTables:
    """What was measured for models with routed experts, latent or sparse attention, or recurrent states."""

    experts: Mapping[Experts, RatioTable] = field(default_factory=dict)
    """Layer and format -> table; of another imbalance, `ANY_LAYER` with its numbers of experts: times relative to
    `MEASURED_IMBALANCE`."""
    tables: Mapping[Kind, Mapping[str, RatioTable]] = field(default_factory=dict)
    """Kind of latent or sparse attention, of projections or states -> format, cache, form or rule -> table."""
    collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]] = field(default_factory=dict)
    """As `CalibrationProfile.collectives`: dispatch of tokens to their experts and combine of what these return, by
    kernel."""
    left_out: Mapping[str, Mapping[str, ErrorStats]] = field(default_factory=dict)
    """Format of experts -> what they were compared with -> errors of all its layers together."""
    sources: tuple[ProfileSource, ...] = ()
    """Where the figures come from."""

    def format_for(self, name: str, gpu: GpuSpec) -> str:
        """Return the format whose tables price experts: the format itself, else the most similar measured.

        Weights that tensor cores cannot multiply are unpacked to 16 bits, as those of w4a16 are (vLLM's Marlin kernels
        serve MXFP4 and AWQ alike): formats that run on the same tensor cores are alike, then those of as many bytes.
        """
        measured = {key.format for key in self.experts} - {ANY_LAYER.format}
        if name in measured or not measured:
            return name
        # rates of the tensor cores; of a kind that the GPU lacks, those of 16 bits
        rates = {"bf16": gpu.bf16_flops, "fp8": gpu.fp8_flops, "fp4": gpu.fp4_flops}
        own = GEMM_FORMATS[name]

        def unlike(other: str) -> tuple[bool, float, str]:
            each = GEMM_FORMATS[other]
            other_cores = rates[each.tensor_cores] != rates[own.tensor_cores]
            return other_cores, abs(math.log(each.weight_bytes / own.weight_bytes)), other

        return min(measured, key=unlike)

    def experts_table(self, of: Experts) -> RatioTable | None:
        """Return the table of a layer's experts, measured or derived; None if the format was not measured."""
        if of not in self._made:
            self._made[of] = experts_table(of, self.experts)
        return self._made[of]

    @cached_property
    def _made(self) -> dict[Experts, RatioTable | None]:
        return {}


class ServerMeasurement(NamedTuple):
    """What a running server measured, and what is left uncertain of it (`ladder_sim.condition`)."""

    said: str
    """Figures, each with its prediction."""
    at: tuple[ModelSpec, Plan, Workload]
    """Model, plan and load that were measured."""
    tpot: float
    """Half-width of the interval of standard's time per token there, in the logarithm."""
    ttft: float
    """Half-width of the interval of standard's time to first token there, likewise; infinite: it was not measured."""
    tpot_elsewhere: float
    """Half-width of the interval of standard's time per token of other loads and plans, in the logarithm."""
    factors: Mapping[str, float]
    """Factors of kernels, prompts, collectives, the CPU's part and the front end."""
    caution: str
    """What about the server is probably otherwise, in a sentence; empty: the figures agree with the prediction."""
    here: "CalibrationProfile | None" = None
    """Of a profile for other loads and plans: the one for what was measured."""

    def is_of(self, model: ModelSpec, plan: Plan, workload: Workload) -> bool:
        """Whether this is what was measured, or one of its replicas, which exchange nothing."""
        return (model, *_replica(plan, workload)) == (self.at[0], *_replica(*self.at[1:]))


def _replica(plan: Plan, workload: Workload) -> tuple[Plan, Workload]:
    part: dict[str, Any] = {workload.load_field: -(-workload.in_flight // plan.dp)}
    return replace(plan, dp=1), replace(workload, **part)


# no slots: what follows from the measurements is computed once and kept
@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationProfile:
    """Everything measured on one machine."""

    name: str
    """E.g. "h100-sxm"."""
    cluster: ClusterSpec
    """Cluster whose GPU and in-node link were measured."""
    cluster_name: str
    """Catalog id or TOML file of that cluster, by which a profile's file names it."""
    created: str
    """ISO date."""
    environment: Mapping[str, str]
    """What it was measured under: device, drivers, versions."""
    sources: tuple[ProfileSource, ...]
    """Where the figures come from."""
    reference: Gpu
    """The measured GPU's figures: a table's time on it is roofline(reference) * ratio."""
    gemm: Mapping[str, RatioTable]
    """Format (`ladder_sim.specs.workload.Format.name`) -> table over m, n, k."""
    attention_prefill: Mapping[str, Mapping[str, RatioTable]]
    """Kernel -> type of the KV cache -> table over the axes of `TableKind.axes`."""
    attention_decode: Mapping[str, Mapping[str, RatioTable]]
    """Tables for one new token per sequence: kernel -> type of the KV cache -> table."""
    collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]]
    """Op (`CollectiveName`) -> algorithm -> ranks of one node -> curve."""
    sampling: Mapping[str, RatioTable] = field(default_factory=dict)
    """`ladder_sim.specs.stack.Sampling` -> table over batch and vocab; empty: not measured."""
    experts: Mapping[Experts, RatioTable] = field(default_factory=dict)
    """As `MoeTables.experts`, which these are added to: layers that were measured together with all else."""
    overlap: Mapping[str, float] = field(default_factory=dict)
    """Fitted parameters of compute and communication sharing a GPU; empty: none fitted."""
    overheads: Mapping[str, float] = field(default_factory=dict)
    """Measured launches, waits and floor of small kernels, which take the place of a stack's figures of the same name,
    as the skew of ranks does of the cluster's; jitter; other names are for information; empty: none."""
    in_place: InPlace | None = None
    """Times of ops where they stand in real passes, which take the place of tables and curves; None: there are none."""
    base: str = ""
    """Shipped profile that tables and curves come from where this one has none of its own; empty: all are its own."""
    root: str = ""
    """Shipped profile that `base` is made of itself; empty: of none."""
    stack_fit: StackFit | None = None
    """A stack's figures, fitted to end-to-end runs."""
    measurement: ServerMeasurement | None = None
    """What a running server measured, which the overheads were moved to; None: nothing."""
    read_moe: Callable[[], MoeTables] = MoeTables
    """Reads `moe`, which dense models do not need."""

    def tables(self, kind: Kind) -> Mapping[str, RatioTable]:
        """Return the tables of a kind but those of experts, by what tells them apart."""
        if kind in ATTENTION:
            section, kernel = ATTENTION[kind]
            of_kernel: Mapping[str, RatioTable] = getattr(self, section).get(kernel, {})
            return of_kernel
        own: Mapping[Kind, Mapping[str, RatioTable]] = {"gemm": self.gemm, "sample": self.sampling}
        return own[kind] if kind in own else self.moe.tables.get(kind, {})

    def table(self, kind: Kind, of: TableOf, gpu: GpuSpec) -> tuple[RatioTable | None, bool]:
        """Return the table of a kernel, and whether it is its own: if it is missing, another's ratios hold on a GPU."""
        if isinstance(of, Experts):
            stand_in = self.moe.format_for(of.format, gpu)
            return self.moe.experts_table(of._replace(format=stand_in)), stand_in == of.format
        tables = self.tables(kind)
        return tables.get(of, tables.get(TABLE_KINDS[kind].stand_ins.get(of, "bf16"))), of in tables

    @property
    def tables_of(self) -> str:
        """Name of the profile that the tables were measured for."""
        return self.root or self.base or self.name

    def fit_of(self, stack: str) -> StackFit | None:
        """Return the fit to runs of a stack; None if this profile has none."""
        return self.stack_fit if self.stack_fit and self.stack_fit.stack == stack else None

    @property
    def messages_wait_for_cores(self) -> bool:
        """Whether real passes sent their messages by ordinary threads that shared the cores of ranks that compute."""
        facts = self.environment
        ordinary = facts.get("gloo_priority") == "ordinary"
        # a core for each rank, and one for its messages
        return ordinary and int(facts.get("cpu_cores", 0)) < 2 * int(facts.get("tp", 1))

    def is_of(self, gpu: GpuSpec) -> bool:
        """Whether the device it was measured on is this GPU, as far as it names one."""
        device = self.environment.get("device")
        return device is None or gpu.is_called(device)

    @cached_property
    def memory_efficiency(self) -> float:
        """Share of the memory's bandwidth that a kernel uses that only streams weights."""
        table = self.gemm.get("bf16")
        if table is None:
            return HBM_EFFICIENCY
        ratio, _ = table.ratio(m=1.0, n=STREAMING_GEMM, k=STREAMING_GEMM)
        return min(1.0, 1.0 / float(ratio))

    @cached_property
    def moe(self) -> MoeTables:
        """What models with experts or latent attention need in addition."""
        others = self.read_moe()
        return replace(others, experts={**others.experts, **self.experts}) if self.experts else others

    @cached_property
    def measured_collectives(self) -> Mapping[tuple[str, str], MeasuredCollective]:
        """Curves of collectives, read against their formulas, by kind and algorithm."""
        return measured_collectives(self.collectives, self.cluster.intra)

    @cached_property
    def measured_dispatches(self) -> Mapping[tuple[str, str], MeasuredCollective]:
        """Curves of dispatch and combine, read against their formulas, by kind and algorithm."""
        return measured_collectives(self.moe.collectives, self.cluster.intra)
