"""Tables for models with experts, latent or sparse attention, or states, from the package aiconfigurator-core.

Experts: the fastest kernel that an engine has, of the newest version that measured a layer; no time falls as tokens
are added. A GPU's table is the median of the engines'. An engine's is its own, but nowhere above the median: its slower
times are those of kernels that it does not take by itself (TensorRT-LLM's fp8 blocks on Blackwell), or faults of the
collection (its bf16 on H100 at some sizes).
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ladder_sim.costs.experts import MEASURED_IMBALANCE, any_layer, transferred
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable, envelope
from ladder_sim.costs.moe_file import SCHEMA, read_moe
from ladder_sim.costs.profile import HBM_EFFICIENCY, MOE_KINDS, CalibrationProfile, MoeTables
from ladder_sim.costs.table_parts import entry, ideal_time_s
from ladder_sim.des.shared import Floats
from ladder_sim.errors import ProfileError
from ladder_sim.kernels import TABLE_KINDS, Experts, Gpu, Kind
from ladder_sim.specs.workload import KV_BYTES
from ladder_sim.system.files import write_file
from tools.profiles import package, parquet
from tools.profiles.aiconfigurator import make_table, nonempty, of_engine
from tools.profiles.clean_experts import by_splits, rising, weights_read_bytes, without_excluded
from tools.profiles.grids import Grid, Series, dense, distinct, merge, rounded
from tools.profiles.mixing import mixing_tables, read_mixing
from tools.profiles.thin import predicted_s

# (hidden, width, experts, top-k) of the layers that are kept: of models that people serve
LAYERS = {
    (4096, 14336, 8, 2): "Mixtral 8x7B",
    (6144, 16384, 8, 2): "Mixtral 8x22B",
    (2048, 768, 128, 8): "Qwen3-30B-A3B",
    (4096, 1536, 128, 8): "Qwen3-235B-A22B",
    (6144, 2560, 160, 8): "Qwen3-Coder-480B-A35B",
    (7168, 2048, 256, 8): "DeepSeek-V3, R1",
    (7168, 2048, 384, 8): "Kimi K2",
    (3072, 1536, 256, 8): "MiniMax M2.5",
    (6144, 2048, 256, 8): "GLM-5",
    (2880, 2880, 32, 4): "gpt-oss-20b",
    (2880, 2880, 128, 4): "gpt-oss-120b",
    (5120, 8192, 16, 1): "Llama 4 Scout",
    (5120, 8192, 128, 1): "Llama 4 Maverick",
    (4096, 1024, 512, 10): "Qwen3.5-397B-A17B",
    (3072, 1024, 256, 8): "Qwen3.5-122B-A10B",
    (2048, 512, 256, 8): "Qwen3.5-35B-A3B",
    (6144, 3072, 128, 4): "MiniMax M3",
    (7168, 3072, 384, 6): "DeepSeek-V4-Pro",
    (4096, 2048, 256, 6): "DeepSeek-V4-Flash",
    (4096, 2048, 256, 8): "MiMo-V2-Flash",
    (2816, 704, 128, 8): "Gemma 4 26B-A4B",
}
# the token counts that tables have; the others judge them
TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
# systems whose files hold copies of another's
COPIES = {"h200_sxm": "h100_sxm"}
# systems on which TensorRT-LLM's latent attention does not split the context: 4,095 tokens of one sequence take as long
# as those of 16, and eight times as long as in SGLang
WITHOUT_SPLIT_KV = ("a100_sxm", "l40s", "rtx_pro_6000_server")
# engine by whose kernels of latent attention others are priced, and of decode on those systems: vLLM's are measured as
# whole modules, launches included
MLA_OF = ("trtllm", "sglang")
# kernels of SGLang with which prompts were measured in the absorbed form, 5.5 to 17 times the expanded one's roofline.
# Its servers expand prompts without a cached beginning (SGLang 0.5.9, deepseek_common/attention_backend_handler.py)
ABSORBED = ("flash_attention", "triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMeasurements:
    """All measurements of one system that models with experts or latent attention need."""

    system: str
    """The package's name for it."""
    experts: Mapping[Experts, Mapping[str, Series]]
    """Layer, format, imbalance -> engine -> series."""
    with_mxfp8: Mapping[Experts, Mapping[str, Series]]
    """The same of MXFP4 experts with activations in MXFP8."""
    tables: Mapping[tuple[Kind, str], list[Series]]
    """Latent attention and its projections; as `Measurements.tables`."""
    dispatches: Mapping[str, parquet.Dispatches]
    """Dispatches by engine."""
    mixing: Mapping[tuple[Kind, str], list[Series]] = field(default_factory=dict)
    """Recurrent states, their convolutions, sparse attention; as `tables`."""
    notes: tuple[str, ...] = ()
    """What was left out or changed, and why."""
    files: tuple[str, ...] = ()
    """Files read, relative to the package's `systems` folder."""


def read_moe_system(system: str, profile: CalibrationProfile, source: Path | None = None) -> MoeMeasurements:
    """Read one system's files, of which some hold more than the table's kernel, which `profile` prices.

    Raises
    ------
    UnknownNameError, UsageError, MissingDependencyError
        As `read_system`.
    """
    files = package.SystemFiles(system, source)
    experts, with_mxfp8 = _read_experts(files)
    tables, dispatches = _read_latent(files), _read_dispatches(files)
    latent = _latent_of_gpu(tables, system, profile.reference)
    mixing = read_mixing(files, replace(profile, read_moe=lambda: MoeTables(tables=latent)))
    return MoeMeasurements(
        system=system,
        experts=experts,
        with_mxfp8=with_mxfp8,
        tables=tables,
        dispatches=dispatches,
        mixing=mixing,
        notes=tuple(files.notes),
        files=tuple(files.read),
    )


def _read(files: package.SystemFiles, label: str, path: Path) -> package.Columns:
    columns = files.columns(path)
    said = sorted({str(version) for version in columns.get("version", ())} - {label.split()[1]})
    if said:
        files.notes.append(f"{files.read[-1]}: rows say version {', '.join(said)}")
    return columns


def _read_experts(files: package.SystemFiles) -> tuple[dict[Experts, dict[str, Series]], ...]:
    """Return the series of experts, and those of MXFP4 experts with activations in MXFP8, by layer and engine."""
    experts, with_mxfp8 = (defaultdict[Experts, dict[str, Series]](dict) for _ in range(2))
    excluded: set[str] = set()
    raised: dict[str, int] = defaultdict(int)
    lowered: dict[str, int] = defaultdict(int)
    bandwidth_Bps = package.read_gpu_figures(files.description)["mem_bw"]
    for label, path in _oldest_first(files.data / "moe", "moe_perf.parquet"):
        columns = _read(files, label, path)
        for dtypes, found in ((parquet.EXPERT_DTYPES, experts), (parquet.MXFP8_DTYPES, with_mxfp8)):
            for key, series in parquet.expert_series(label, columns, dtypes):
                if key[1:5] not in LAYERS:
                    continue
                own, reasons = without_excluded(series, files.system, key)
                fastest_s = weights_read_bytes(key, own) / bandwidth_Bps
                raised[label] += int((own.seconds < fastest_s).sum())
                own = rising(replace(own, seconds=np.maximum(own.seconds, fastest_s)))
                split = by_splits(own, fastest_s / HBM_EFFICIENCY)
                lowered[label] += int((split.seconds < own.seconds).sum())
                own = rising(split)
                excluded |= reasons
                if len(own.seconds):
                    found[key][own.engine] = own
    files.notes += sorted(excluded)
    files.notes += [
        f"{count} experts' times of {label} raised to what reading weights takes"
        for label, count in raised.items()
        if count
    ]
    files.notes += [
        f"{count} experts' times of {label} lowered to what other splits of the layer take"
        for label, count in lowered.items()
        if count
    ]
    return experts, with_mxfp8


def _read_latent(files: package.SystemFiles) -> dict[tuple[Kind, str], list[Series]]:
    tables: dict[tuple[Kind, str], list[Series]] = defaultdict(list)
    phases: dict[Kind, str] = {"mla_prefill": "context", "mla_decode": "generation"}
    for kind, phase in phases.items():
        for label, path in package.newest_files(files.data / "mla", f"{phase}_mla_perf.parquet"):
            columns = _read(files, label, path)
            if kind == "mla_prefill" and np.isin(columns.get("kernel_source", ""), ABSORBED).any():
                files.notes.append(f"without {files.read.pop()}: prompts in the absorbed form, which servers expand")
                continue
            for kv_dtype in KV_BYTES:
                tables[kind, kv_dtype].append(parquet.mla_series(label, columns, kind, kv_dtype))
    for label, path in package.newest_files(files.data / "mla_bmm", "mla_bmm_perf.parquet"):
        columns = _read(files, label, path)
        for dtype in ("bf16", "fp8"):
            tables["bmm", dtype].append(parquet.bmm_series(label, columns, dtype))
    return nonempty(tables)


def _read_dispatches(files: package.SystemFiles) -> dict[str, parquet.Dispatches]:
    dispatches: dict[str, parquet.Dispatches] = defaultdict(dict)
    copied_from = COPIES.get(files.system)
    for name in ("wideep_deepep_ll_perf", "wideep_deepep_normal_perf", "moe_a2a_perf", "trtllm_alltoall_perf"):
        for label, path in _oldest_first(files.data / "comm", f"{name}.parquet"):
            columns = _read(files, label, path)
            if copied_from:
                original = files.systems / "data" / copied_from / path.relative_to(files.data)
                if original.is_file() and _same_times(columns, package.read_columns(original)):
                    files.notes.append(f"without {files.read.pop()}: its times are those of {copied_from}")
                    continue
            engine = label.split()[0]
            if name.startswith("wideep"):
                of_node = package.read_gpus_per_node(files.description)
                dispatches[engine] |= parquet.deepep_series(label, columns, of_node)
            elif name == "moe_a2a_perf":
                dispatches[engine] |= parquet.a2a_series(label, columns)
            else:
                dispatches[engine] |= parquet.nvlink_series(label, columns)
    return dispatches


def _same_times(columns: package.Columns, others: package.Columns) -> bool:
    return all(np.array_equal(values, others.get(name, ())) for name, values in columns.items() if name.endswith("_us"))


def make_moe(measured: MoeMeasurements, profile: CalibrationProfile) -> MoeTables:
    """Return the tables of the GPU: medians over its engines, in the figures of its `profile`."""
    reference = profile.reference
    experts: dict[Experts, RatioTable] = {}
    grids: dict[Experts, Grid] = {}
    for key, engines in sorted(measured.experts.items()):
        if key.imbalance == MEASURED_IMBALANCE:
            grids[key] = _median(engines)
            experts[key] = experts_table(key, grids[key], reference)
    left_out = {
        f"experts {name}": left_out_errors(
            {key: grid for key, grid in grids.items() if key.format == name}, experts, reference
        )
        for name in sorted({key.format for key in grids})
    }
    what = "medians of experts' times and of recurrent states'; latent and sparse attention of one engine"
    return MoeTables(
        experts={**experts, **_factors(measured.experts)},
        tables={
            **_latent_of_gpu(measured.tables, measured.system, reference),
            **mixing_tables(measured.mixing, "", reference),
        },
        left_out=left_out,
        sources=(package.source_of(measured.system, what, measured.files, measured.notes),),
    )


def make_engine_moe(measured: MoeMeasurements, engine: str, base: MoeTables, reference: Gpu) -> MoeTables:
    """Return the tables of one engine."""
    experts = {
        key: _capped(own, table) for key, table in base.experts.items() if (own := _as_run(measured, key, engine))
    }
    collectives: dict[str, dict[str, dict[int, Curve]]] = defaultdict(lambda: defaultdict(dict))
    for (op, kernel, ranks), series in sorted(measured.dispatches.get(engine, {}).items()):
        if len(series.seconds) > 1:
            collectives[op][kernel][ranks] = _curve(rising(series))
    files = tuple(file for file in measured.files if f"/{engine}" in file)
    mxfp8 = " (MXFP4 with activations in MXFP8)" if any(engine in each for each in measured.with_mxfp8.values()) else ""
    what = f"experts{mxfp8}, latent and sparse attention, recurrent states, dispatch and combine of {engine}"
    source = package.source_of(measured.system, what, files)
    tables = {**_latent_tables(measured.tables, engine, reference), **mixing_tables(measured.mixing, engine, reference)}
    return MoeTables(experts=experts, tables=tables, collectives=collectives, sources=(source,))


def _as_run(measured: MoeMeasurements, key: Experts, engine: str) -> Series | None:
    """Return the times of the kernel that an engine takes for a layer; None if it was not measured."""
    quantised = measured.with_mxfp8.get(key, {})
    own = quantised.get(engine)
    if own is None:
        return measured.experts.get(key, {}).get(engine)
    # the engines call one library's kernels, in which each measured other splits
    rows = np.concatenate([own.points, *(each.points for each in quantised.values())])
    seconds = np.concatenate([own.seconds, *(each.seconds for each in quantised.values())])
    points, first = np.unique(rows, axis=0, return_index=True)
    return replace(own, points=points, seconds=seconds[first])


def _latent_of_gpu(
    measured: Mapping[tuple[Kind, str], list[Series]], system: str, reference: Gpu
) -> dict[Kind, dict[str, RatioTable]]:
    """Return the tables of latent attention and its projections for engines without their own."""
    first, split = (_latent_tables(measured, engine, reference) for engine in MLA_OF)
    return {**split, "mla_prefill": first["mla_prefill"]} if system in WITHOUT_SPLIT_KV else first


def _latent_tables(
    measured: Mapping[tuple[Kind, str], list[Series]], engine: str, reference: Gpu
) -> dict[Kind, dict[str, RatioTable]]:
    """Return the tables of latent attention and its projections, by one engine's kernels."""
    tables: dict[Kind, dict[str, RatioTable]] = defaultdict(dict)
    for (kind, of), own in of_engine(measured, engine).items():
        tables[kind][of] = make_table(kind, of, own, reference)
    return tables


def _oldest_first(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    yield from sorted(package.all_files(folder, name), key=lambda file: package.version_key(file[0].split()[1]))


def _median(engines: Mapping[str, Series]) -> Grid:
    grid = merge(TABLE_KINDS["moe"].axes, distinct(list(engines.values())))
    return replace(grid, seconds=envelope(grid.seconds, [2]))


def experts_table(key: Experts, grid: Grid, reference: Gpu) -> RatioTable:
    """Return the table of a layer at `TOKENS`, in whole hundredths of the roofline."""
    tokens = np.isin(grid.axes["tokens"], TOKENS)
    axes = {**grid.axes, "tokens": grid.axes["tokens"][tokens]}
    ideal_s = ideal_time_s(axes, "moe", key, reference)
    return RatioTable.from_seconds(axes, ideal_s * np.round(grid.seconds[..., tokens] / ideal_s, 2), ideal_s)


def _capped(own: Series, base: RatioTable) -> RatioTable:
    """Return an engine's times where `base` has its own, as whole hundredths of those, and at most as long."""
    inside = np.logical_and.reduce([np.isin(own.points[:, i], values) for i, values in enumerate(base.axes)])
    share = np.minimum(1.0, np.maximum(0.01, np.round(dense(list(base.axes), own.at(inside)) / base.seconds, 2)))
    return replace(base, seconds=base.seconds * share)


def _factors(experts: Mapping[Experts, Mapping[str, Series]]) -> dict[Experts, RatioTable]:
    """Return times with other imbalances over the measured one's: medians over engines, formats, widths and TP."""
    logs: dict[Experts, dict[tuple[float, float], list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, engines in experts.items():
        if key.imbalance == MEASURED_IMBALANCE:
            continue
        for engine, series in engines.items():
            level = experts.get(key._replace(imbalance=MEASURED_IMBALANCE), {}).get(engine)
            level_s = dict(zip(map(tuple, level.points.tolist()), level.seconds.tolist(), strict=True)) if level else {}
            for (expert_tp, ep, tokens), seconds in zip(series.points.tolist(), series.seconds.tolist(), strict=True):
                if tokens in TOKENS and (expert_tp, ep, tokens) in level_s:
                    logs[any_layer(key)][ep, tokens].append(np.log(seconds / level_s[expert_tp, ep, tokens]))
    factors = {}
    for key, cells in sorted(logs.items()):
        ep, tokens = (np.unique(column) for column in np.array(list(cells)).T)
        values = np.full((1, len(ep), len(tokens)), np.nan)
        for (of, count), many in cells.items():
            at = 0, int(np.searchsorted(ep, of)), int(np.searchsorted(tokens, count))
            values[at] = round(float(np.exp(np.median(many))), 2)
        axes = dict(zip(TABLE_KINDS["moe"].axes, (np.ones(1), ep, tokens), strict=True))
        factors[key] = RatioTable.from_seconds(axes, values, 1.0)
    return factors


def left_out_errors(
    grids: Mapping[Experts, Grid], experts: Mapping[Experts, RatioTable], reference: Gpu
) -> dict[str, ErrorStats]:
    """Return the errors of one format's tables at token counts left out, and of layers made of others."""
    predicted: dict[str, list[Floats]] = defaultdict(list)
    measured: dict[str, list[Floats]] = defaultdict(list)
    for key, grid in grids.items():
        ideal_s = ideal_time_s(grid.axes, "moe", key, reference)
        tables = {"aggregated": experts[key]}
        if others := {other: experts[other] for other in grids if other != key}:
            tables["other layers"] = transferred(key, others)
        for against, table in tables.items():
            rows = np.isfinite(grid.seconds)
            if against == "aggregated":
                rows &= ~np.isin(grid.axes["tokens"], TOKENS)
            predicted[against].append(predicted_s(table, grid.axes, ideal_s)[rows])
            measured[against].append(grid.seconds[rows])
    return {
        against: ErrorStats.of(np.concatenate(predicted[against]), np.concatenate(measured[against]))
        for against in predicted
    }


def _curve(series: Series) -> Curve:
    """Return times of a dispatch or combine at every fourth power of two; they are read against a formula."""
    size_bytes = series.points[:, 0]
    tokens = size_bytes / parquet.TOKEN_BYTES
    kept = np.isin(tokens, TOKENS) | (tokens == tokens.min()) | (tokens == tokens.max())
    seconds = rounded(series.seconds)
    curve = Curve(size_bytes=size_bytes[kept], seconds=seconds[kept])
    errors = ErrorStats.of(curve.seconds_at(size_bytes[~kept])[0], seconds[~kept])
    return replace(curve, left_out={"aggregated": errors})


def write_moe(own: MoeTables, path: Path, *, name: str, created: str, base: MoeTables | None, reference: Gpu) -> None:
    """Write a file, the same bytes for the same tables; of an engine's, `own`, what `base` does not say."""
    entries = SCHEMA.marked(name=name, created=created)
    if base is None:
        entries["experts"] = [
            {**key._asdict(), "axes": entry(dict(zip(each.names, each.axes, strict=True))), "percent": _percent(each)}
            for key, each in own.experts.items()
        ]
    else:
        entries["shares"] = [
            {**key._asdict(), "percent": _percent(each, base.experts[key])} for key, each in own.experts.items()
        ]
    entries |= {kind: entry(own.tables.get(kind, {})) for kind in MOE_KINDS}
    entries |= {each: entry(getattr(own, each)) for each in ("sources", "collectives", "left_out")}
    document = json.dumps(entries, separators=(",", ":"), allow_nan=False).encode()
    path.parent.mkdir(exist_ok=True)
    write_file(path, gzip.compress(document, 9, mtime=0), error=ProfileError)
    read_moe(str(path), reference, base)


def _percent(own: RatioTable, base: RatioTable | None = None) -> list[int | None]:
    ratio = np.exp(own.log_ratio) if base is None else own.seconds / base.seconds
    percent = np.where(np.isnan(own.seconds), np.nan, 100.0 * ratio).ravel().tolist()
    return [None if share != share else round(share) for share in percent]
