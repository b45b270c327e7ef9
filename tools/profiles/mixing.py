"""Tables of recurrent states, their convolutions, and sparse attention, from the package aiconfigurator-core.

Kernels of states are measured alone: their times depend on the states of all sequences together, however these are
shared out. Of equal problems the fastest counts, because a busy machine only adds (SGLang's on H200 differ by up to
four times).

Sparse attention is measured as a whole module, projections included. What its table holds is the module's time less
that of the rest of the block as predictions price it, so that both add up to what was measured.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.graph.block import BlockKernels
from ladder_sim.graph.layers import add
from ladder_sim.graph.ops import PassInputs, RankPass
from ladder_sim.hf.attention import Index, Mla
from ladder_sim.hf.mixer import Attend, Linear, Mixer
from ladder_sim.hf.quantization import KvDType
from ladder_sim.kernels import TABLE_KINDS, Gpu, Kind, SparseShape
from ladder_sim.kernels.attention import LEAST_EARLIER
from ladder_sim.specs.scenario import Scenario
from tools.profiles import package
from tools.profiles.aiconfigurator import make_table, of_engine
from tools.profiles.clean_experts import rising
from tools.profiles.grids import Series

# theirs -> ours
RULES = {"gdn": "gated-delta", "kda": "kda", "mamba2": "mamba2"}
PHASES = {"context": "prefill", "generation": "decode"}
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8-block"}
CACHES: Mapping[str, KvDType] = {"bfloat16": "bf16", "fp8": "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A block with sparse attention, as one model has it."""

    model: str
    """The package's name of the model."""
    kind: Mla | Mixer
    """The block."""
    format: str
    """The package's name of the operands' format with which it was measured in most engines."""
    skips: bool = False
    """An earlier layer has chosen what it reads."""

    @property
    def core(self) -> Mla | Attend:
        """What has heads and an index."""
        return self.kind if isinstance(self.kind, Mla) else next(c for c in self.kind.cores if isinstance(c, Attend))

    @property
    def table_of(self) -> str:
        """Start of the keys of its tables: form of the entries, heads of the index."""
        index = self.core.index
        return f"{'latent' if isinstance(self.kind, Mla) else 'heads'}-{index.heads if index else 0}"


def _latent(model: str, hidden: int, heads: int, queries: int, widths: tuple[int, int], index: int) -> Module:
    nope, value = widths
    kind = Mla(
        hidden=hidden,
        heads=heads,
        kv_lora_rank=512,
        q_lora_rank=queries,
        nope_head_dim=nope,
        rope_head_dim=64,
        value_head_dim=value,
        index=Index(heads=index, dim=128, top_k=2048),
    )
    return Module(model=model, kind=kind, format="fp8_block", skips=not index)


_M3 = Mixer(
    hidden=6144,
    inputs=(
        (Linear(n=8192, k=6144), *(Linear(n=512, k=6144, heads=4) for _ in range(2))),
        (Linear(n=512, k=6144, sharding="none"), Linear(n=128, k=6144, sharding="none")),
    ),
    cores=(Attend(heads=64, kv_heads=4, key_dim=128, value_dim=128, index=Index(heads=4, dim=128, top_k=2048)),),
    outputs=(Linear(n=6144, k=8192, sharding="rows"),),
    norms=(8192, 512),
    parameters=110887424,
)
# of the models' config.json; keys of tables have the numbers of the index's heads
MODULES = (
    _latent("deepseek-ai/DeepSeek-V3.2", 7168, 128, 1536, (128, 128), 64),
    _latent("zai-org/GLM-5-FP8", 6144, 64, 2048, (192, 256), 32),
    _latent("zai-org/GLM-5.2-FP8", 6144, 64, 2048, (192, 256), 0),
    Module(model="MiniMaxAI/MiniMax-M3", kind=_M3, format="bfloat16"),
)
# files whose modules were measured without the launches of their kernels; those of vLLM's and TensorRT-LLM's latent
# attention take 140 and 220 us at least, where SGLang's take 60, and all prompts are launched kernel by kernel
MEASURED = {("sparse_attention", "sglang"): "dsa", ("msa", "sglang"): "msa", ("msa", "vllm"): "msa"}
# heads of a rank that are kept: of TP 8, or of TP 16 of the widest
LEAST_HEADS = 8
# new tokens of a prompt, and earlier ones, that are kept
LEAST_NEW, EARLIER = 512, (0, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
# sequences up to which decode runs in captured graphs
CAPTURED = 256
# a prompt's module takes this many times as long as the fastest one of its kernels, else its time is that of launches
NOT_LAUNCHES = 2.0


def read_mixing(files: package.SystemFiles, profile: CalibrationProfile) -> dict[tuple[Kind, str], list[Series]]:
    """Return the series of each table, as `Measurements.tables`; the rest of a module is priced by `profile`."""
    tables: dict[tuple[Kind, str], list[Series]] = defaultdict(list)
    for family, name in (("linear_attention", "gdn"), ("linear_attention", "mamba2"), ("kda", "kda")):
        for label, path in package.newest_files(files.data / family, f"{name}_perf.parquet"):
            for of, series in state_series(label, files.columns(path), RULES[name]):
                tables[of].append(series)
    for (family, engine), name in MEASURED.items():
        for phase in PHASES:
            for label, path in package.newest_files(files.data / family, f"{name}_{phase}_module_perf.parquet"):
                if label.split()[0] == engine:
                    for of, series in sparse_series(label, files.columns(path), phase, profile):
                        tables[of].append(series)
    return tables


def _fastest(label: str, points: Any, seconds: Any) -> Series:
    """Return the fastest of equal problems; no time falls along the last axis."""
    cells, which = np.unique(np.asarray(points, np.float64), axis=0, return_inverse=True)
    least = np.full(len(cells), np.inf)
    np.minimum.at(least, which.ravel(), seconds)
    return rising(Series(label=label, points=cells, seconds=least))


def state_series(label: str, columns: package.Columns, rule: str) -> Iterator[tuple[tuple[Kind, str], Series]]:
    """Yield the series of states of a rule and of convolutions, over the axes of their tables."""
    batch, length = columns["batch_size"], columns["seq_len"]
    convolves = np.array(["conv" in str(kernel) for kernel in columns["kernel_source"]])
    measured = columns["latency"] > 0
    if "num_v_heads" in columns:
        values = columns["num_v_heads"] * columns["head_v_dim"]
        elements, channels = values * columns["head_k_dim"], values + 2 * columns["num_k_heads"] * columns["head_k_dim"]
    else:
        values, states = columns["nheads"] * columns["head_dim"], columns["d_state"]
        elements, channels = values * states, values + 2 * columns["n_groups"] * states
    for theirs, ours in PHASES.items():
        rows = measured & (columns["phase"] == theirs)
        # kernels of Kimi delta attention convolve queries, keys and values in one
        for name, size, which in (
            ("state", elements, rows & ~convolves),
            ("convolution", channels, rows & convolves & (rule != "kda")),
        ):
            if which.any():
                points = np.column_stack([batch * size, length][: 2 if ours == "prefill" else 1])[which]
                kind: Any = f"{name}_{ours}"
                yield (kind, rule), _fastest(label, points, columns["latency"][which] * 1e-3)


def sparse_series(
    label: str, columns: package.Columns, phase: str, profile: CalibrationProfile
) -> Iterator[tuple[tuple[Kind, str], Series]]:
    """Yield the series of the attention in each module, over the axes of its table."""
    for module in MODULES:
        for theirs, cache in CACHES.items():
            rows = (columns["model"] == module.model) & (columns["kv_cache_dtype"] == theirs)
            rows &= columns["gemm_type"] == module.format
            rows &= (columns["num_heads"] >= LEAST_HEADS) & (columns["num_heads"] <= module.core.heads)
            rows &= np.array([str(op).endswith("skip_indexer") == module.skips for op in columns["op_name"]])
            # what SGLang runs where no token has more than `top_k` to choose from: `SparseShape.dense`
            rows &= np.array(["dense_mha" not in str(kernel) for kernel in columns["kernel_source"]])
            rows &= columns["batch_size"] <= CAPTURED if phase == "generation" else _computes(columns, rows)
            if phase == "context":
                rows &= (columns["isl"] >= LEAST_NEW) & np.isin(columns["step"], EARLIER)
            if not rows.any():
                continue
            batch, heads, new, before = (
                columns[name][rows].astype(np.float64) for name in ("batch_size", "num_heads", "isl", "step")
            )
            core_s = columns["latency"][rows] * 1e-3 - rest_s(module, cache, batch, heads, new, before, profile)
            of = f"{module.table_of}-{cache}"
            kind: Kind = "sparse_decode" if phase == "generation" else "sparse_prefill"
            if kind == "sparse_decode":
                points = np.column_stack([batch, heads, before + new])
            else:
                points, core_s = np.column_stack([heads, new, np.maximum(before, LEAST_EARLIER)]), core_s / batch
            at = dict(zip(TABLE_KINDS[kind].axes, points.T, strict=True))
            ideal_s = TABLE_KINDS[kind].shape(of, at).roofline_s(profile.reference)
            yield (kind, of), _fastest(label, points, np.maximum(core_s, ideal_s))


def _computes(columns: package.Columns, rows: Any) -> Any:
    """Whether each row's time is that of its kernels, not of launching them."""
    kernels, least = np.unique(columns["kernel_source"], return_inverse=True), np.zeros(len(rows))
    for number in range(len(kernels[0])):
        of = rows & (kernels[1] == number)
        if of.any():
            least[of] = columns["latency"][of].min()
    return columns["latency"] >= NOT_LAUNCHES * least


def rest_s(
    module: Module, cache: KvDType, batch: Any, heads: Any, new: Any, before: Any, profile: CalibrationProfile
) -> Any:
    """Return what the kernels of a module take besides its attention, as predictions price them, for each row."""
    base = Scenario(model="deepseek-r1", cluster=profile.cluster, stack="sglang", tp=1, dtype=FORMATS[module.format])
    inputs = PassInputs.of(base)
    ops, ends = [], []
    for sequences, on_rank, q_len, earlier in zip(
        *(each.tolist() for each in (batch, heads, new, before)), strict=True
    ):
        workload = replace(inputs.workload, batch=int(sequences), prompt=int(q_len), kv_dtype=cache)
        plan = replace(inputs.plan, tp=int(module.core.heads / on_rank))
        rank = RankPass(
            inputs._replace(workload=workload, plan=plan), "prefill" if q_len > 1 else "decode", int(q_len + earlier)
        )
        block = BlockKernels(rank, "attn")
        add(block, module.kind, reduces=False)
        ops += [op for op in block.ops if not isinstance(op.shape, SparseShape)]
        ends.append(len(ops))
    seconds = np.array([each.seconds for each in KernelCosts(base, profile).estimates(ops)])
    return np.add.reduceat(seconds, [0, *ends[:-1]])


def mixing_tables(
    tables: Mapping[tuple[Kind, str], list[Series]], engine: str, reference: Gpu
) -> dict[Kind, dict[str, RatioTable]]:
    """Return the tables of one engine, or with an empty name of the GPU: the median over its engines."""
    made: dict[Kind, dict[str, RatioTable]] = defaultdict(dict)
    for (kind, of), many in (of_engine(tables, engine) if engine else tables).items():
        # kernels of sparse attention are each engine's own
        made[kind][of] = make_table(kind, of, many[:1] if kind.startswith("sparse") else many, reference)
    return made
