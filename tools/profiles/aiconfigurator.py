"""Profiles from the measurements of the PyPI package aiconfigurator-core (Apache-2.0).

The package holds, per GPU system, times of GEMMs and attention in three engines and of NCCL's and the engines' own
collectives. A GPU's profile has medians: of a table over the newest version of each engine, of a curve over all
versions. An engine's profile has what engines do differently: its own attention and its own all-reduce, and GEMMs whose
activations come quantised (`STATIC`).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from ladder_sim.costs.collectives.algorithms import OWN
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.costs.profile import CalibrationProfile, CollectiveName
from ladder_sim.costs.table_parts import ideal_time_s
from ladder_sim.errors import UnknownNameError
from ladder_sim.kernels import GEMM_FORMATS, TABLE_KINDS, Gpu, Kind
from ladder_sim.specs import catalog
from ladder_sim.specs.workload import KV_BYTES
from tools.profiles import package, parquet
from tools.profiles.allreduce import all_reduce_curves, collective_curves, engine_curves
from tools.profiles.clean import FALLS, from_memory, outlier_note, static, without_excluded
from tools.profiles.grids import Grid, Series, distinct, merge, rounded
from tools.profiles.thin import leave_one_out, predicted_s, thin

Key = TypeVar("Key")

# the package's system -> profile
SYSTEMS = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "a100_sxm": "a100-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "l40s": "l40s-pcie",
    "rtx_pro_6000_server": "rtx-pro-6000",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
}
# catalog cluster whose GPU and in-node links a profile was measured on, if its name is not the profile's
MEASURED_ON = {"a100-sxm": "a100-sxm-hdr"}
# engines with profiles of their own
ENGINES = ("vllm", "trtllm", "sglang")
# collectives, by the package's names
OPS: dict[str, CollectiveName] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
PHASES: dict[Kind, str] = {"attention_prefill": "context", "attention_decode": "generation"}

# engines whose fp8 checkpoints state the scales of activations, so that norms, activations and attention write fp8; the
# others' times hold the quantisation that their servers do
STATIC = ("trtllm",)
# ... kernels that their fp8 GEMMs were measured with, by the package's names: finding a tensor's scale, applying it
QUANTISATION = ("computescale", "scale_matrix")
# at most so many points per table, so that a system's files stay below 250 KB gzipped and load in 30 ms
MAX_POINTS: dict[Kind, int] = {
    "gemm": 8000,
    "attention_prefill": 3000,
    "attention_decode": 3000,
    "mla_prefill": 120,
    "mla_decode": 400,
    "bmm": 400,
    "state_prefill": 80,
    "state_decode": 12,
    "convolution_prefill": 150,
    "convolution_decode": 12,
    "sparse_prefill": 260,
    "sparse_decode": 350,
}

# bf16 GEMMs price the runs that gpt-fast was fitted to, and fewer points move those by 0.7 %
MAX_POINTS_BF16 = 22000
# ... and at most this share of what was measured, so that enough is left to judge the table on
MAX_SHARE = 0.6
# mean error below which a left-out axis value need not be added: below the spread between engines
TARGET_ERROR = 0.01
# what predictions look up most often, by axis: powers of two as batch, width and context, and models' head widths
KEEP = {
    "m": tuple(2.0**i for i in range(16)),
    **dict.fromkeys(("n", "k"), (1024.0, 2048.0, 4096.0, 8192.0, 16384.0)),
    **dict.fromkeys(("q_len", "kv_len"), (512.0, 1024.0, 2048.0, 4096.0, 8192.0)),
    "group": (1.0, 2.0, 4.0, 8.0, 16.0),
    "head_dim": (64.0, 128.0, 256.0),
    "heads": (8.0, 16.0, 32.0, 128.0),
}
# measured for few shapes, between widths that are kept: shows the error of interpolating over head_dim
JUDGE = {"head_dim": (192.0,)}
# share of the engines that must have measured a point of a table
QUORUM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All measurements in one system's files."""

    system: str
    """The package's name for it."""
    environment: Mapping[str, str]
    """Device and engine versions."""
    figures: Mapping[str, float]
    """The package's figures of the GPU, by its own keys."""
    tables: Mapping[tuple[Kind, str], list[Series]] = field(default_factory=dict)
    """(kind, format of a GEMM or of the KV cache) -> one series per engine, of its newest version."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Engine -> its decode attention kernel."""
    nccl: Mapping[tuple[str, int], list[Series]] = field(default_factory=dict)
    """(op, ranks) -> one series per version."""
    custom: Mapping[tuple[str, int], list[Series]] = field(default_factory=dict)
    """(engine, ranks) -> one series per version."""
    notes: tuple[str, ...] = ()
    """What was left out or changed, and why."""
    files: tuple[str, ...] = ()
    """Files read, relative to the package's `systems` folder."""


def read_system(system: str, source: Path | None = None) -> Measurements:
    """Read one system's files.

    Parameters
    ----------
    system
        The package's name for it, one of `SYSTEMS`.
    source
        Unpacked package, or its folder ``systems``; None: the installed package.

    Raises
    ------
    UnknownNameError, UsageError, MissingDependencyError
        If the system is unknown, or its files are absent or unreadable.
    """
    if system not in SYSTEMS:
        raise UnknownNameError("system", system, SYSTEMS)
    files = package.SystemFiles(system, source)
    figures = package.read_gpu_figures(files.description)
    gemms = _read_gemms(files, figures)
    attention, kernels = _read_attention(files, figures["mem_bw"])
    nccl, custom = _read_collectives(files)
    tables = gemms | attention
    files.notes += [note for (kind, dtype), many in tables.items() if (note := outlier_note(kind, dtype, many))]
    versions = sorted({series.label.split()[1] for many in nccl.values() for series in many})
    engines = ", ".join(series.label for series in gemms.get(("gemm", "bf16"), []))
    return Measurements(
        system=system,
        environment={"device": files.device, "engines": engines, "nccl": ", ".join(versions)},
        figures=figures,
        tables=tables,
        kernels=kernels,
        nccl=nccl,
        custom=custom,
        notes=tuple(files.notes),
        files=tuple(files.read),
    )


def _read_gemms(files: package.SystemFiles, figures: Mapping[str, float]) -> dict[tuple[Kind, str], list[Series]]:
    tables: dict[tuple[Kind, str], list[Series]] = defaultdict(list)
    for label, path in package.newest_files(files.data / "gemm", "gemm_perf.parquet"):
        columns = files.columns(path)
        for dtype in parquet.GEMM_DTYPES:
            series = parquet.gemm_series(label, columns, dtype)
            if dtype == "fp8" and series.engine in STATIC and len(series.seconds):
                folder = files.data / "quantize" / label.replace(" ", "/")
                kernels = [files.columns(folder / f"{name}_perf.parquet") for name in QUANTISATION]
                series = static(
                    series,
                    [parquet.quantise_series(label, each) for each in kernels],
                    bandwidth_Bps=figures["mem_bw"],
                    flops=figures["fp8_tc_flops"],
                )
                files.notes.append(f"gemm fp8 of {label}: quantisation subtracted ({', '.join(QUANTISATION)})")
            series, reasons = without_excluded(series, files.system, dtype)
            weights_bytes = series.points[:, 1:].prod(axis=1) * GEMM_FORMATS[dtype].weight_bytes
            series, raised = from_memory(series, weights_bytes, figures["mem_bw"], f"gemm {dtype}")
            files.notes += [*reasons, *raised]
            tables["gemm", dtype].append(series)
    return nonempty(tables)


def _read_attention(
    files: package.SystemFiles, bandwidth_Bps: float
) -> tuple[dict[tuple[Kind, str], list[Series]], dict[str, str]]:
    """Return the series of attention, and the decode kernel of each engine."""
    tables: dict[tuple[Kind, str], list[Series]] = defaultdict(list)
    kernels: dict[str, str] = {}
    for kind, phase in PHASES.items():
        for label, path in package.newest_files(files.data / "attention", f"{phase}_attention_perf.parquet"):
            columns = files.columns(path)
            kernels[label.split()[0]] = parquet.attention_kernel(columns)
            for kv_dtype, element_bytes in KV_BYTES.items():
                series = parquet.attention_series(label, columns, kind, kv_dtype)
                if kind == "attention_decode":
                    # keys and values of every head, token and channel
                    cache_bytes = 2.0 * element_bytes * series.points[:, [0, 2, 3]].prod(axis=1)
                    what = f"decode attention, {kv_dtype} cache"
                    series, raised = from_memory(series, cache_bytes, bandwidth_Bps, what)
                    files.notes += raised
                tables[kind, kv_dtype].append(series)
    return nonempty(tables), kernels


def _read_collectives(
    files: package.SystemFiles,
) -> tuple[dict[tuple[str, int], list[Series]], dict[tuple[str, int], list[Series]]]:
    """Return NCCL's series by operation and ranks, and the engines' all-reduces by engine and ranks."""
    nccl: dict[tuple[str, int], list[Series]] = defaultdict(list)
    for label, path in package.all_files(files.data / "comm", "nccl_perf.parquet"):
        columns = files.columns(path)
        for op in OPS:
            for ranks in np.unique(columns["num_gpus"]).tolist():
                nccl[op, ranks].append(parquet.nccl_series(label, columns, op, ranks))
    custom: dict[tuple[str, int], list[Series]] = defaultdict(list)
    for label, path in package.all_files(files.data / "comm", "custom_allreduce_perf.parquet"):
        columns = files.columns(path)
        for ranks in np.unique(columns["num_gpus"]).tolist():
            engine, series = parquet.custom_series(label, columns, ranks)
            custom[engine, ranks].append(series)
    return nonempty(nccl), nonempty(custom)


def make_profile(measured: Measurements, *, created: str) -> CalibrationProfile:
    """Aggregate, thin and judge a system's measurements; the profile gets `created` as its ISO date."""
    reference = reference_gpu(measured)
    name = SYSTEMS[measured.system]
    cluster = MEASURED_ON.get(name, name)
    collectives: dict[str, dict[str, dict[int, Curve]]] = {
        ours: {"nccl": collective_curves(measured.nccl, op)} for op, ours in OPS.items()
    }
    what = "medians of GEMM, attention, NCCL and all-reduce times"
    return CalibrationProfile(
        name=name,
        cluster=catalog.cluster(cluster),
        cluster_name=cluster,
        created=created,
        environment=measured.environment,
        sources=(package.source_of(measured.system, what, measured.files, measured.notes),),
        reference=reference,
        gemm=_tables("gemm", measured.tables, reference),
        attention_prefill={"flash": _tables("attention_prefill", measured.tables, reference)},
        attention_decode={"flash": _tables("attention_decode", measured.tables, reference)},
        collectives={**collectives, "all_reduce": all_reduce_curves(measured.nccl, measured.custom)},
    )


def make_engine_profile(
    measured: Measurements, engine: str, base: CalibrationProfile, *, created: str
) -> CalibrationProfile:
    """Return the profile of one engine: its attention, all-reduce and static GEMMs, over the GPU's profile `base`."""
    own = of_engine(measured.tables, engine)
    version, curves = engine_curves(measured.custom, engine)
    labels = [s.label for key, many in own.items() if key[0] != "gemm" for s in many]
    files = tuple(
        file for file in measured.files if any(label.replace(" ", "/") in file for label in (*labels, version))
    )
    reference = base.reference
    # static checkpoints are fp8; an engine's GEMMs of other formats are the libraries' that all engines call
    static_gemms = {key: many for key, many in own.items() if key == ("gemm", "fp8") and engine in STATIC}
    return replace(
        base,
        name=f"{base.name}-{engine}",
        base=base.name,
        created=created,
        environment={
            **base.environment,
            "engine": labels[0],
            "attention": measured.kernels[engine],
            "all-reduce": version,
        },
        sources=(*base.sources, package.source_of(measured.system, f"attention and all-reduce of {engine}", files)),
        gemm={**base.gemm, **_tables("gemm", static_gemms, reference)},
        attention_prefill={"flash": _tables("attention_prefill", own, reference)},
        attention_decode={"flash": _tables("attention_decode", own, reference)},
        collectives={
            **base.collectives,
            "all_reduce": {**base.collectives["all_reduce"], OWN: curves},
        },
    )


def of_engine(tables: Mapping[Key, list[Series]], engine: str) -> dict[Key, list[Series]]:
    """Return one engine's series of each table."""
    return nonempty({key: [series for series in many if series.engine == engine] for key, many in tables.items()})


def _tables(kind: Kind, measured: Mapping[tuple[Kind, str], list[Series]], reference: Gpu) -> dict[str, RatioTable]:
    return {dtype: make_table(kind, dtype, many, reference) for (of, dtype), many in measured.items() if of == kind}


def reference_gpu(measured: Measurements) -> Gpu:
    """Return the GPU of the package's file; its kernel floor is the fastest bf16 GEMM measured."""
    figures = measured.figures
    fastest_s = float(np.nanmin(_merge("gemm", measured.tables["gemm", "bf16"]).seconds))
    return Gpu(
        bf16_flops=figures["bfloat16_tc_flops"],
        fp8_flops=figures.get("fp8_tc_flops", figures["bfloat16_tc_flops"]),
        fp4_flops=figures.get("fp4_tc_flops", figures["bfloat16_tc_flops"]),
        hbm_bandwidth_Bps=figures["mem_bw"],
        kernel_s=round(fastest_s, 8),
    )


def make_table(kind: Kind, dtype: str, series: list[Series], reference: Gpu) -> RatioTable:
    """Return the table of the median over `series`, thinned, with its errors on the measurements left out."""
    grid = _merge(kind, series)
    seconds = rounded(grid.seconds)
    ideal_s = ideal_time_s(grid.axes, kind, dtype, reference)
    points = MAX_POINTS_BF16 if (kind, dtype) == ("gemm", "bf16") else MAX_POINTS[kind]
    table = thin(
        grid.axes,
        seconds,
        ideal_s,
        max_points=min(points, int(MAX_SHARE * np.isfinite(seconds).sum())),
        target=TARGET_ERROR,
        keep=KEEP,
        judge=JUDGE,
    )
    return replace(table, left_out=_left_out_errors(kind, dtype, table, series, reference))


def _left_out_errors(
    kind: Kind, dtype: str, table: RatioTable, series: list[Series], reference: Gpu
) -> dict[str, ErrorStats]:
    """Return the errors of `table` on the measurements that are not its grid points.

    Returns
    -------
    dict
        ``"aggregated"``: against the median over the series; each series by its label: against its own rows;
        ``"leave-one-out"``: at grid points, with their axis value taken out of the grid.
    """
    grid = _merge(kind, series)
    ideal_s = ideal_time_s(grid.axes, kind, dtype, reference)
    left = np.isfinite(grid.seconds)
    left[np.ix_(*(np.isin(v, kept) for v, kept in zip(grid.axes.values(), table.axes, strict=True)))] = False
    errors = {"aggregated": ErrorStats.of(predicted_s(table, grid.axes, ideal_s)[left], grid.seconds[left])}
    for own in distinct(series):
        on_grid = [np.isin(own.points[:, i], kept) for i, kept in enumerate(table.axes)]
        rows = ~np.logical_and.reduce(on_grid)
        points = dict(zip(TABLE_KINDS[kind].axes, own.points[rows].T, strict=True))
        ratio, _ = table.ratio(**points)
        own_ideal_s = TABLE_KINDS[kind].shape(dtype, points).roofline_s(reference)
        errors[own.label] = ErrorStats.of(ratio * own_ideal_s, own.seconds[rows])
    errors["leave-one-out"] = leave_one_out(table)
    return errors


def nonempty(series: Mapping[Key, list[Series]]) -> dict[Key, list[Series]]:
    """Return the keys and series that have rows."""
    kept = {key: [each for each in many if len(each.seconds)] for key, many in series.items()}
    return {key: many for key, many in kept.items() if many}


def _merge(kind: Kind, series: list[Series]) -> Grid:
    rising, far = FALLS.get(kind, ((), 1.0))
    return merge(TABLE_KINDS[kind].axes, distinct(series), quorum=QUORUM, rising=rising, far=far)
