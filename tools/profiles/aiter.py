"""``python -m tools.profiles.aiter``: makes the profiles of AMD's GPUs of AITER's tuned kernels (ROCm/aiter, MIT).

AITER publishes the time of its fastest kernel for the shapes of models, one after another, in ``aiter/configs``. The
folder `--source` holds them as two files: ``gemm.csv.gz`` with the columns file, gfx, cu_num, m, n, k, out_dtype,
weight_dtype, us, and ``moe.csv.gz`` with file, gfx, cu_num, tokens, hidden, width (of one rank), experts, top_k,
activation_dtype, weight_dtype, quantisation, us.

Shapes are scattered and tables are rectangles: a point that was not measured is an estimate, the ratio to the roofline
of the shapes near it. Formats that were tuned on one GPU only are carried over to the other by the roofline.
"""

import argparse
import csv
import gzip
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.costs.profile import CalibrationProfile, MoeTables, ProfileSource
from ladder_sim.costs.profile_file import MOE_FOLDER, SUFFIX, save_profile
from ladder_sim.costs.table_parts import ideal_time_s
from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError, exit_code
from ladder_sim.kernels import GEMM_FORMATS, TABLE_KINDS, Experts, Gpu
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import FULL_NODE
from ladder_sim.system.arguments import Parser
from ladder_sim_calibration.options import add_created
from tools.profiles.aiconfigurator import KEEP, TARGET_ERROR
from tools.profiles.clean import FALLS, from_memory
from tools.profiles.grids import Series, distinct, lowered, merge, rounded
from tools.profiles.moe import LAYERS, experts_table, left_out_errors, write_moe
from tools.profiles.thin import thin

COMMIT = "e404860"
# cluster -> architecture and compute units, as the files name GPUs
SYSTEMS = {"mi355x": ("gfx950", 256), "mi300x": ("gfx942", 304)}
# GPU whose ratios hold for formats that were not tuned on another: of the fp8 blocks that both have, the MI355X's
# ratios meet the MI300X's times within 7 %, where its rooflines are 64 % short
CARRIED_FROM = {"mi300x": "mi355x"}
# vLLM's custom all-reduce on eight GPUs, in bf16: microseconds by bytes; from 256 KiB on by two shots (vllm.toml)
ALL_REDUCES = {
    "mi355x": {
        "one-shot": {24576: 6.3, 49152: 6.7, 98304: 7.6, 196608: 10.0},
        "two-shot": {393216: 13.1, 786432: 16.0, 1572864: 24.2},
    }
}
# formats of GEMMs by the names of files, first that fits, and the type of the weights where the file has others too.
# 4-bit GEMMs (a4w4) are left out, because mxfp4 has inputs of 16 bits here; and fp8 blocks in an order of their own,
# whose kernels take 14 % less time on half of the shapes
GEMM_FILES = (
    (r"batched|a4w4|blockscale_bpreshuffle", "", ""),
    (r"bf16", "bf16", ""),
    (r"a8w8\w*blockscale", "fp8-block", ""),
    (r"a8w8", "fp8", "float8"),
)
# (activations, weights, scales) of experts -> format; of two kernels of one layer and format the later holds
EXPERT_FORMATS: Mapping[tuple[str, ...], str] = {
    ("bfloat16", "bfloat16", "No"): "bf16",
    ("float8", "float8", "per_Tensor"): "fp8",
    ("float8", "float8", "per_Token"): "fp8",
    ("float8", "float8", "per_1x128"): "fp8-block",
    ("bfloat16", "int4", "per_1x32"): "w4a16",
    ("bfloat16", "float4", "per_1x32"): "mxfp4",
    ("float8", "float4", "per_1x32"): "mxfp4",
    ("float4", "float4", "per_1x32"): "mxfp4",
}

# rows of GEMMs in tables: files have thousands of numbers of rows, along which times are smooth
ROWS = np.array([1.0, *(2.0**i * step for i in range(1, 16) for step in (1.0, 1.5) if i > 3 or step == 1.0)])
# weights tuned for fewer numbers of rows are random shapes, of no model; layers of experts need more token counts
LEAST_ROWS = 3
# columns of a kernel's tile: other weights fall back to kernels that take 3 to 30 times as long, but for wide LM heads
TILE, LM_HEAD = 64, 8192
# distance in the logarithms of m, n and k below which shapes count alike; the power by which farther ones count less
NEAR, POWER = 0.1, 4.0
# points of one table, so that a profile stays below 60 KB
MAX_POINTS = 3500
# points that are looked up at a time
CHUNK = 128

Row = Mapping[str, str]


def read_rows(source: Path, name: str, system: str) -> list[Row]:
    """Return the rows of one file that were measured on a system.

    Raises
    ------
    UsageError
        The folder has no such file.
    """
    path = source / name
    if not path.is_file():
        raise UsageError(f"no file '{path}'", hint="--source names the folder of gemm.csv.gz and moe.csv.gz")
    gfx, units = SYSTEMS[system]
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if (row["gfx"], row["cu_num"]) == (gfx, str(units))]


def gemm_series(rows: Sequence[Row]) -> dict[str, list[Series]]:
    """Return the GEMMs of each format, one series per file."""
    cells: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        dtype = _gemm_format(row)
        m, n, k = (float(row[axis]) for axis in TABLE_KINDS["gemm"].axes)
        # a router's logits in 32 bits are another kernel
        if dtype and (n % TILE == 0 or n > LM_HEAD) and "float32" not in row["out_dtype"]:
            cells[dtype][row["file"]].append([m, n, k, 1e-6 * float(row["us"])])
    series = {dtype: [_series(file, own) for file, own in sorted(files.items())] for dtype, files in cells.items()}
    return {dtype: [_of_models(each) for each in many] for dtype, many in series.items()}


def _of_models(series: Series) -> Series:
    """Return the shapes whose weights were tuned for several numbers of rows."""
    _, weights, count = np.unique(series.points[:, 1:], axis=0, return_inverse=True, return_counts=True)
    return series.at(count[weights.ravel()] >= LEAST_ROWS)


def _gemm_format(row: Row) -> str:
    """Return the format of a GEMM; empty if tables have none such."""
    name = row["file"].rpartition("/")[2]
    pattern = next((each for each in GEMM_FILES if re.search(each[0], name)), ("", "", ""))
    return pattern[1] if pattern[2] in row["weight_dtype"] else ""


def _series(
    label: str, cells: Sequence[Sequence[float]], repeated: Callable[[Floats], np.floating] = np.median
) -> Series:
    """Return a series of rows of coordinates and seconds; repeated rows count as their median, or as `repeated`."""
    table = np.array(cells)
    points, place = np.unique(table[:, :-1], axis=0, return_inverse=True)
    seconds = [repeated(table[place.ravel() == at, -1]) for at in range(len(points))]
    return Series(label=label, points=points, seconds=np.array(seconds))


def _read_from_memory(dtype: str, series: Series, bandwidth_Bps: float, notes: list[str]) -> Series:
    """Return times that reading the weights allows; a tuner repeats a GEMM, which then finds them in a cache."""
    weights_bytes = series.points[:, 1:].prod(axis=1) * GEMM_FORMATS[dtype].weight_bytes
    series, raised = from_memory(series, weights_bytes, bandwidth_Bps, dtype)
    notes += raised
    return series


def gemm_table(dtype: str, series: Sequence[Series], reference: Gpu) -> RatioTable:
    """Return the table of a format, with its errors on shapes off the grid and on every second shape and file.

    The latter are of tables made of the others.
    """
    shapes = _all(series)
    table = _completed(dtype, shapes, reference)
    on_grid = np.all([np.isin(shapes.points[:, i], axis) for i, axis in enumerate(table.axes)], axis=0)
    errors = {"aggregated": _errors(table, dtype, shapes.at(~on_grid), reference)}
    second = np.arange(len(shapes.seconds)) % 2 == 1
    others = _completed(dtype, shapes.at(~second), reference)
    errors["every second shape"] = _errors(others, dtype, shapes.at(second), reference)
    if len(series) > 1:
        others = _completed(dtype, _all(series[::2]), reference)
        errors["every second file"] = _errors(others, dtype, _all(series[1::2]), reference)
    return replace(table, left_out=errors)


def _all(series: Sequence[Series]) -> Series:
    """Return all shapes of several files together."""
    rows = [np.column_stack([each.points, each.seconds]) for each in distinct(series)]
    return _series("aiter", np.concatenate(rows).tolist())


def _errors(table: RatioTable, dtype: str, shapes: Series, reference: Gpu) -> ErrorStats:
    points = dict(zip(TABLE_KINDS["gemm"].axes, shapes.points.T, strict=True))
    seconds = table.factor(**points) * TABLE_KINDS["gemm"].shape(dtype, points).roofline_s(reference)
    return ErrorStats.of(seconds, shapes.seconds)


def _completed(dtype: str, shapes: Series, reference: Gpu) -> RatioTable:
    """Return the thinned table of scattered shapes: what was measured as such, all else as an estimate."""
    m, n, k = (np.unique(column) for column in shapes.points.T)
    axes = {"m": ROWS[(m[0] <= ROWS) & (m[-1] >= ROWS)], "n": n, "k": k}
    sizes = tuple(len(values) for values in axes.values())
    ideal_s = ideal_time_s(axes, "gemm", dtype, reference)
    own_s = TABLE_KINDS["gemm"].shape(dtype, dict(zip(axes, shapes.points.T, strict=True))).roofline_s(reference)
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes.values(), indexing="ij")], axis=1)
    # files with thousands of numbers of rows of one weight count no more than others
    nearest_row = np.abs(np.subtract.outer(np.log(shapes.points[:, 0]), np.log(axes["m"]))).argmin(axis=1)
    places = np.column_stack([axes["m"][nearest_row], shapes.points[:, 1:]])
    shapes_like, of = np.unique(places, axis=0, return_inverse=True)
    log_sums = np.bincount(of.ravel(), np.log(shapes.seconds / own_s))
    log_ratio = nearby(shapes_like, log_sums / np.bincount(of.ravel()), points)
    seconds = np.exp(log_ratio).reshape(sizes) * ideal_s
    measured = np.full(sizes, np.nan)
    there = np.isin(shapes.points[:, 0], axes["m"])
    at = [np.searchsorted(axis, column) for axis, column in zip(axes.values(), shapes.points[there].T, strict=True)]
    measured[tuple(at)] = shapes.seconds[there]
    rising, far = FALLS["gemm"]
    rising_at = [TABLE_KINDS["gemm"].axes.index(name) for name in rising]
    known = lowered(np.where(np.isnan(measured), seconds, measured), rising_at, far)
    table = thin(axes, known, ideal_s, max_points=MAX_POINTS, target=TARGET_ERROR, keep={"m": KEEP["m"]})
    kept = np.ix_(*(np.isin(values, own) for values, own in zip(axes.values(), table.axes, strict=True)))
    return RatioTable.from_seconds(
        dict(zip(table.names, table.axes, strict=True)),
        np.where(np.isnan(measured[kept]), np.nan, rounded(table.seconds)),
        ideal_s[kept],
        estimates=rounded(table.seconds),
    )


def nearby(measured: Floats, values: Floats, points: Floats) -> Floats:
    """Return the mean of the values of measured shapes at other points, near ones counting more.

    Parameters
    ----------
    measured, points
        Coordinates, shape (shapes, axes) and (points, axes).
    values
        One per measured shape.

    Examples
    --------
    >>> nearby(np.array([[1.0], [100.0]]), np.array([0.0, 1.0]), np.array([[1.0], [10.0]])).round(3).tolist()
    [0.0, 0.5]
    """
    known, wanted = np.log(measured), np.log(points)
    means = np.empty(len(wanted))
    for start in range(0, len(wanted), CHUNK):
        some = wanted[start : start + CHUNK]
        square = sum(np.subtract.outer(some[:, axis], known[:, axis]) ** 2 for axis in range(known.shape[1]))
        weight = (square + NEAR**2) ** (-POWER / 2.0)
        means[start : start + CHUNK] = weight @ values / weight.sum(axis=1)
    return means


def carried(dtype: str, table: RatioTable, reference: Gpu) -> RatioTable:
    """Return another GPU's table as estimates at this one's figures."""
    axes = dict(zip(table.names, table.axes, strict=True))
    ideal_s = ideal_time_s(axes, "gemm", dtype, reference)
    nothing = np.full(table.seconds.shape, np.nan)
    return RatioTable.from_seconds(axes, nothing, ideal_s, estimates=rounded(np.exp(table.log_ratio) * ideal_s))


def expert_series(rows: Sequence[Row], kernel_s: float) -> dict[Experts, Series]:
    """Return the fastest experts of each layer and format; to AITER's kernels comes that which sorts tokens by expert.

    A layer's width is that of a model in `LAYERS`, else the largest that was tuned; a rank with fewer experts than a
    model's is a layer of its own. Times that several numbers of tokens share were copied from one to the other.
    """
    of_model = {(hidden, experts, top_k): width for hidden, width, experts, top_k in LAYERS}
    widest: dict[tuple[int, ...], int] = defaultdict(int)
    counts = Counter(_without(row, "tokens") for row in rows)
    kernels: dict[Experts, dict[tuple[str, ...], list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        layer = tuple(int(row[name]) for name in ("hidden", "experts", "top_k"))
        widest[layer] = max(widest[layer], int(row["width"]))
    for row in rows:
        hidden, experts, top_k = (int(row[name]) for name in ("hidden", "experts", "top_k"))
        width = of_model.get((hidden, experts, top_k), widest[hidden, experts, top_k])
        if counts[_without(row, "tokens")] == 1 and width % int(row["width"]) == 0:
            key = Experts(EXPERT_FORMATS[_operands(row)], hidden, width, experts, top_k)
            seconds = kernel_s + 1e-6 * float(row["us"])
            kernels[key][_operands(row)].append([width / int(row["width"]), 1.0, float(row["tokens"]), seconds])
    taken = {key: own[max(own, key=list(EXPERT_FORMATS).index)] for key, own in sorted(kernels.items())}
    series = {key: _series("aiter", cells, np.min) for key, cells in taken.items()}
    return {key: own for key, own in series.items() if len(np.unique(own.points[:, 2])) > LEAST_ROWS}


def _without(row: Row, name: str) -> tuple[str, ...]:
    return tuple(value for key, value in row.items() if key != name)


def _operands(row: Row) -> tuple[str, ...]:
    """Return the types of activations and weights and the scales, without the variants of a type."""
    types = [row[name].removeprefix("torch.").partition("_")[0] for name in ("activation_dtype", "weight_dtype")]
    return (*types, row["quantisation"].removeprefix("QuantType."))


def make_moe(experts: Mapping[Experts, Series], reference: Gpu, source: ProfileSource) -> MoeTables:
    """Return the tables of experts with their errors at token counts left out and of layers made of others."""
    grids = {key: merge(TABLE_KINDS["moe"].axes, [series]) for key, series in experts.items()}
    tables = {key: experts_table(key, grid, reference) for key, grid in grids.items()}
    formats = sorted({key.format for key in grids})
    of_format = {name: {key: grid for key, grid in grids.items() if key.format == name} for name in formats}
    errors = {f"experts {name}": left_out_errors(own, tables, reference) for name, own in of_format.items()}
    return MoeTables(experts=tables, left_out=errors, sources=(source,))


def source_of(what: str, rows: Sequence[Row], *notes: str) -> ProfileSource:
    """Return where entries come from: AITER's files of some rows."""
    files = tuple(sorted({f"aiter/configs/{row['file']}" for row in rows}))
    return ProfileSource(
        what=what,
        version=COMMIT,
        licence="MIT",
        files=files,
        citation="https://github.com/ROCm/aiter, (c) Advanced Micro Devices",
        notes=notes,
    )


def make_profile(
    system: str, rows: Sequence[Row], *, created: str, other: CalibrationProfile | None = None
) -> CalibrationProfile:
    """Return a GPU's profile; `other` has the formats that this one lacks."""
    cluster = catalog.cluster(system)
    reference = Gpu.of(cluster.gpu)
    gemm, notes = {}, ["of shapes in several files the median"]
    for dtype, files in sorted(gemm_series(rows).items()):
        shapes = [_read_from_memory(dtype, each, cluster.gpu.hbm_bandwidth_Bps, notes) for each in files]
        gemm[dtype] = gemm_table(dtype, shapes, reference)
    sources = [source_of(f"GEMMs of {cluster.gpu.name}", rows, *notes)]
    if other:
        missing = {dtype: table for dtype, table in other.gemm.items() if dtype not in gemm}
        gemm |= {dtype: carried(dtype, table, reference) for dtype, table in missing.items()}
        note = f"{', '.join(missing)}: not tuned on this GPU, carried over by the roofline"
        sources += [replace(other.sources[0], notes=(*other.sources[0].notes, note))]
    return CalibrationProfile(
        name=system,
        cluster=cluster,
        cluster_name=system,
        created=created,
        environment={"engines": f"AITER {COMMIT}"},
        sources=tuple(sources),
        reference=reference,
        gemm=gemm,
        attention_prefill={},
        attention_decode={},
        collectives={},
    )


def with_all_reduces(profile: CalibrationProfile, measured: Mapping[str, Mapping[int, float]]) -> CalibrationProfile:
    """Return the profile of a GPU under vLLM: its own, with curves of vLLM's all-reduce on a full node."""
    curves = {}
    for name, times_us in measured.items():
        sizes, seconds = np.array(list(times_us), np.float64), 1e-6 * np.array(list(times_us.values()))
        inner = range(1, len(sizes) - 1)
        others = [Curve(size_bytes=np.delete(sizes, at), seconds=np.delete(seconds, at)) for at in inner]
        left = np.concatenate([each.seconds_at(sizes[at : at + 1])[0] for at, each in zip(inner, others, strict=True)])
        errors = {"leave-one-out": ErrorStats.of(left, seconds[1:-1])}
        curves[name] = {FULL_NODE: Curve(size_bytes=sizes, seconds=seconds, left_out=errors)}
    source = ProfileSource(
        what="vLLM's custom all-reduce on eight GPUs",
        version="before #39080",
        licence="Apache-2.0",
        files=(),
        citation="https://github.com/vllm-project/vllm/pull/39080",
    )
    return replace(
        profile,
        name=f"{profile.name}-vllm",
        base=profile.name,
        environment={**profile.environment, "all-reduce": "vllm before #39080"},
        sources=(*profile.sources, source),
        collectives={"all_reduce": curves},
    )


def main(argv: Sequence[str]) -> int:
    """Make the profiles of all systems; returns the exit code."""
    parser = Parser(prog="python -m tools.profiles.aiter", description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="folder that holds gemm.csv.gz and moe.csv.gz")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write to")
    add_created(parser)
    return exit_code(lambda: _make(parser.read(argv)))


def _make(options: argparse.Namespace) -> None:
    made: dict[str, CalibrationProfile] = {}
    for system in SYSTEMS:
        rows = [row for row in read_rows(options.source, "gemm.csv.gz", system) if _gemm_format(row)]
        other = made.get(CARRIED_FROM.get(system, ""))
        profile = made[system] = make_profile(system, rows, created=options.created, other=other)
        save_profile(profile, options.out / f"{system}{SUFFIX}")
        if system in ALL_REDUCES:
            under_vllm = with_all_reduces(profile, ALL_REDUCES[system])
            save_profile(under_vllm, options.out / f"{under_vllm.name}{SUFFIX}")
        rows = [row for row in read_rows(options.source, "moe.csv.gz", system) if _operands(row) in EXPERT_FORMATS]
        source = source_of(
            "experts, whose tokens choose evenly: taken for the imbalance of other measurements",
            rows,
            "the time of one small kernel is added, which sorts tokens by expert",
        )
        moe = make_moe(expert_series(rows, float(profile.reference.kernel_s)), profile.reference, source)
        path = options.out / MOE_FOLDER / f"{system}{SUFFIX}"
        write_moe(moe, path, name=system, created=options.created, base=None, reference=profile.reference)
        for each in (*profile.gemm.items(), *moe.left_out.items()):
            print(system, *each[:1], getattr(each[1], "left_out", each[1]), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
