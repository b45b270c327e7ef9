"""`calibrate fit` and `diff`: makes a profile of samples, and compares two profiles."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import ProfileError, UsageError
from ladder_sim.system.files import write_file
from ladder_sim_calibration.fit.overlap import MEASURED
from ladder_sim_calibration.fit.profile import MAX_MEDIAN_ERROR, FittedProfile, make_profile
from ladder_sim_calibration.fit.samples import SampleStore, medians
from ladder_sim_calibration.fit.tables import curve_of, curves_in, tables_in
from ladder_sim_calibration.nccl_tests.sweep import Sweep, fabric_text
from ladder_sim_calibration.options import add_created, profile_name


def add_to(commands: Any) -> None:
    """Add `fit` and `diff` to the command line."""
    fit = commands.add_parser("fit", help="make a profile of a samples file")
    fit.add_argument("samples", type=Path, help="file that `calibrate run` wrote")
    fit.add_argument("--cluster", required=True, help="catalog cluster, or its .toml, whose GPU was measured")
    fit.add_argument("--out", type=Path, required=True, help="profile to write")
    fit.add_argument("--fabric", type=Path, help="also write the all-reduce across nodes, for use as inter.fabric")
    fit.add_argument("--force", action="store_true", help="write the profile even if its errors are too large")
    add_created(fit)
    fit.set_defaults(run=_fit)

    diff = commands.add_parser("diff", help="compare the times of two profiles where both were measured")
    diff.add_argument("first", help="name of a shipped profile, or a file")
    diff.add_argument("second", help="the same")
    diff.set_defaults(run=_diff)


def _fit(options: argparse.Namespace) -> None:
    store, created = SampleStore(options.samples), options.created
    for written in filter(None, (options.out, options.fabric)):
        if written.exists() and written.samefile(options.samples):
            raise UsageError(f"'{written}' is the samples file", hint="choose another name to write")
    fitted = make_profile(store, name=profile_name(options.out), cluster=options.cluster, created=created)
    print("\n".join(report(fitted)), file=sys.stderr)
    if fitted.refused and not options.force:
        raise ProfileError(
            f"median errors above {MAX_MEDIAN_ERROR:.0%}: {'; '.join(fitted.refused)}",
            hint="measure longer, or write the profile anyway with --force",
        )
    fabric = _fabric(store, fitted.profile.cluster_name, created) if options.fabric else ""
    save_profile(fitted.profile, options.out)
    print(options.out)
    if options.fabric:
        write_file(options.fabric, fabric)
        print(options.fabric)


def _fabric(store: SampleStore, cluster: str, created: str) -> str:
    """Return the fabric file of the all-reduce over the most nodes and ranks, which a profile does not hold."""
    points = medians(store.samples)
    across = [op for op in points if op.op == "all_reduce" and op.nodes > 1]
    if not across:
        raise ProfileError(
            f"samples '{store.path}' hold no all-reduce across nodes", hint="run `calibrate run` on several nodes"
        )
    widest = max(across, key=lambda op: (op.nodes, op.ranks))
    curve = curve_of(points[widest])
    sweep = Sweep(
        file=store.path.name,
        op="all_reduce",
        sizes=tuple(curve.size_bytes.tolist()),
        seconds=tuple(curve.seconds.tolist()),
        program="calibrate run",
        device=str(store.environment.get("gpu", "")),
    )
    per_node = widest.ranks // widest.nodes
    return fabric_text(sweep, cluster=cluster, nodes=widest.nodes, ranks_per_node=per_node, created=created)


def report(fitted: FittedProfile) -> Iterator[str]:
    """Yield lines that say what was fitted and how well."""
    for label, stats in fitted.errors.items():
        yield f"{label}: {stats.rows} points held out, error {stats.median:.1%} median, {stats.max:.1%} at most"
    for label in fitted.unjudged:
        yield f"{label}: too few points to judge"
    for slowdown in fitted.slowdowns:
        kernel, ratios = "GEMM of several rows" if slowdown.several_rows else "other kernel", slowdown.ratios
        yield f"{slowdown.pair}, {kernel}: {np.median(ratios):.2f} times as long, {len(ratios)} points"
    for kernel in dict.fromkeys(loss.kernel for loss in fitted.losses):
        counts = sorted({loss.held for loss in fitted.losses if loss.kernel == kernel})
        longer = ", ".join(
            f"{np.median([loss.ratio for loss in fitted.losses if (loss.kernel, loss.held) == (kernel, count)]):.2f}"
            for count in counts
        )
        yield f"{kernel}, next to {', '.join(f'{count:g}' for count in counts)} held: {longer} times as long"
    for gemm in fitted.sustained:
        clock = f", clock {gemm.clock_MHz:.0f} MHz" if gemm.clock_MHz else ""
        yield f"gemm of {gemm.m:g} tokens under load: {gemm.ratio:.2f} times as long as cold{clock}"
    for name, value in (*fitted.profile.overheads.items(), *fitted.profile.overlap.items()):
        yield f"{name} {value:.3g}"
    if left := set(MEASURED) - fitted.profile.overlap.keys():
        yield f"not measured, predictions use the default: {', '.join(sorted(left))}"
    for warning in fitted.warnings:
        yield f"warning: {warning}"


def _diff(options: argparse.Namespace) -> None:
    first, second = (dict(measurements(load_profile(name))) for name in (options.first, options.second))
    shared = [key for key in first if key in second]
    if not shared:
        raise ProfileError(
            "the two profiles have no measured point in common", hint="`calibrate show` lists what they hold"
        )
    for table in dict.fromkeys(table for table, _ in shared):
        ratios = np.array([second[key] / first[key] for key in shared if key[0] == table])
        low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
        spread = f"{middle:.3f} times as long ({low:.3f} to {high:.3f})"
        print(f"{table}: {len(ratios)} points, {options.second} takes {spread}")


def measurements(profile: CalibrationProfile) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield every measured point of a profile: (table, coordinates), seconds."""
    for name, table in tables_in(profile):
        for index in np.argwhere(np.isfinite(table.seconds)):
            at = zip(table.names, table.axes, index, strict=True)
            point = ";".join(f"{axis}={values[i]:g}" for axis, values, i in at)
            yield (name, point), float(table.seconds[tuple(index)])
    for name, ranks, curve in curves_in(profile.collectives):
        for size, seconds in zip(curve.size_bytes, curve.seconds, strict=True):
            yield (f"{name} {ranks}", f"bytes={size:g}"), float(seconds)
