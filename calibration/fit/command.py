"""`calibrate fit`, `diff` and `export`: from samples to a profile, between two profiles, from a profile to CSV."""

import argparse
import csv
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calibration.fit.fabric import widest_fabric
from calibration.fit.profile import WORST_MEDIAN, FittedProfile, make_profile
from calibration.fit.samples import SampleStore
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import ProfileError

# (table, point) -> seconds
Measured = dict[tuple[str, str], float]


def add_to(commands: Any) -> None:
    """Add the commands to a parser's."""
    fit = commands.add_parser("fit", help="make a profile of a samples file")
    fit.add_argument("samples", type=Path, help="what `calibrate run` wrote")
    fit.add_argument("--cluster", required=True, help="catalog cluster, or its .toml, whose GPU was measured")
    fit.add_argument("--out", type=Path, required=True, help="profile to write")
    fit.add_argument("--fabric", type=Path, help="write the all-reduce across nodes too, to use as inter.fabric")
    fit.add_argument("--force", action="store_true", help="write it even if its fit is bad")
    fit.add_argument("--created", help="date to write into the profile; default: today")
    fit.set_defaults(run=_fit)

    diff = commands.add_parser("diff", help="how the times of two profiles differ where both were measured")
    diff.add_argument("one", help="name of a shipped profile, or a file")
    diff.add_argument("other", help="the same")
    diff.set_defaults(run=_diff)

    export = commands.add_parser("export", help="write a profile's measurements as CSV to stdout")
    export.add_argument("profile", help="name of a shipped profile, or a file")
    export.set_defaults(run=_export)


def _fit(options: argparse.Namespace) -> None:
    store, created = SampleStore(options.samples), options.created or datetime.date.today().isoformat()
    name = options.out.name.removesuffix(".gz").removesuffix(".json")
    found = make_profile(store, name=name, cluster=options.cluster, created=created)
    print("\n".join(_described(found)), file=sys.stderr)
    if found.refused and not options.force:
        raise ProfileError(
            f"the fit is bad: {'; '.join(found.refused)} (median error, at most {WORST_MEDIAN:.0%} passes)",
            hint="measure longer, or --force writes it",
        )
    fabric = widest_fabric(store, cluster=found.profile.gpu, created=created) if options.fabric else ""
    save_profile(found.profile, options.out)
    print(options.out)
    if options.fabric:
        try:
            options.fabric.write_text(fabric, "utf-8")
        except OSError as error:
            raise ProfileError(f"'{options.fabric}' cannot be written: {error.strerror}") from error
        print(options.fabric)


def _described(found: FittedProfile) -> Iterator[str]:
    """What the fit found, a line each."""
    for label, stats in found.errors.items():
        yield f"{label}: {stats.rows} points held out, error {stats.median:.1%} median, {stats.max:.1%} at most"
    for label in found.unjudged:
        yield f"{label}: too few points to judge"
    for label, fit in found.fits.items():
        values = ", ".join(f"{name} {value:.3g}" for name, value in zip(fit.names, fit.values, strict=True))
        yield f"{label}: {values}; median residual {fit.error:.1%}"
    for one in found.slowdowns:
        kernel = "memory-bound" if one.memory_bound else "compute-bound"
        yield f"{one.what}, {kernel} kernel: {np.median(one.ratios):.2f} times as long, {len(one.ratios)} points"
    for name, value in (*found.profile.overheads.items(), *found.profile.overlap.items()):
        yield f"{name} {value:.3g}"
    if not found.profile.overlap:
        yield "collective_slowdown not measured: predictions take their default"
    for warning in found.warnings:
        yield f"warning: {warning}"


def _diff(options: argparse.Namespace) -> None:
    one, other = (dict(measurements(load_profile(name))) for name in (options.one, options.other))
    shared = [key for key in one if key in other]
    if not shared:
        raise ProfileError(
            "the two profiles have no measured point in common", hint="`calibrate show` says what is in them"
        )
    for table in dict.fromkeys(table for table, _ in shared):
        ratios = np.array([other[key] / one[key] for key in shared if key[0] == table])
        low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
        print(
            f"{table}: {len(ratios)} points, {options.other} takes {middle:.3f} times as long ({low:.3f} to {high:.3f})"
        )


def _export(options: argparse.Namespace) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("table", "point", "seconds"))
    for (table, point), seconds in measurements(load_profile(options.profile)):
        writer.writerow((table, point, repr(seconds)))


def measurements(profile: CalibrationProfile) -> Iterator[tuple[tuple[str, str], float]]:
    """Every measured point of a profile: its table, its coordinates, seconds."""
    for dtype, table in profile.gemm.items():
        yield from _points(f"gemm {dtype}", table)
    for name, kernels in (("prefill", profile.attention_prefill), ("decode", profile.attention_decode)):
        for kernel, tables in kernels.items():
            for dtype, table in tables.items():
                yield from _points(f"{name} attention {kernel} {dtype}", table)
    for op, algorithms in profile.collectives.items():
        for algorithm, curves in algorithms.items():
            for ranks, curve in curves.items():
                for size, seconds in zip(curve.size_bytes, curve.seconds, strict=True):
                    yield (f"{op} {algorithm} {ranks}", f"bytes={size:g}"), float(seconds)


def _points(name: str, table: RatioTable) -> Iterator[tuple[tuple[str, str], float]]:
    for index in np.argwhere(np.isfinite(table.seconds)):
        at = ";".join(f"{axis}={values[i]:g}" for axis, values, i in zip(table.names, table.axes, index, strict=True))
        yield (name, at), float(table.seconds[tuple(index)])
