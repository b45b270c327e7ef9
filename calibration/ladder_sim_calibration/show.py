"""`calibrate show`: what a profile holds and how far to trust it."""

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence.interval import NORMAL_90
from ladder_sim.costs.lookup import ErrorStats
from ladder_sim.costs.profile import CalibrationProfile, StackFit
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.kernels import TABLE_KINDS
from ladder_sim.report.console import show, table
from ladder_sim_calibration.fit.tables import curves_in, tables_in

HEADINGS = ("table", "points", "judged against", "rows", "median", "p90", "max")
FIGURE_HEADINGS = ("figure", "catalog", "fitted", "within", "prior within", "known from")


def describe(profile: CalibrationProfile) -> RenderableType:
    """Describe a profile, with its interpolation errors on measurements that its grids leave out."""
    lines = [
        f"profile {profile.name}, made {profile.created} on {profile.environment.get('device', profile.cluster_name)}",
        *(
            line
            for part in (*profile.sources, *profile.moe.sources)
            for line in (
                f"source  {part.what} ({'; '.join(filter(None, (part.citation, part.licence)))})",
                *(f"        {note}" for note in part.notes),
            )
        ),
        *_line("machine", profile.environment),
        *_line("between kernels", {name: f"{value:.3g}" for name, value in profile.overheads.items()}),
        *_line("overlap", {name: f"{value:.3g}" for name, value in profile.overlap.items()}),
        "errors  |looked up / measured - 1| on measurements that are not in the profile",
        "        aggregated: the median over engines (versions, for collectives), which the tables hold; an engine's",
        "        name: its own rows; leave-one-out: at grid points, their axis value taken out, so gaps twice as wide;",
        "        held out: points looked up in a table made of the others; other layers: experts of one layer made",
        "        of the others', as those that were not measured are",
        "",
    ]
    cells: list[tuple[str, ...]] = []
    for name, points, against, error in _errors(profile):
        errors = (f"{100 * value:.1f} %" for value in (error.median, error.p90, error.max))
        cells.append((name, points, against, str(error.rows), *errors))
    parts: list[RenderableType] = [Text("\n".join(lines)), table(HEADINGS, cells, left=3, keys=3)]
    if profile.stack_fit:
        parts += [Text(), describe_stack_fit(profile.stack_fit)]
    return Group(*parts)


def _line(what: str, values: Mapping[str, str]) -> list[str]:
    """Return one line of a table, or none without values."""
    return [f"{what}  {', '.join(f'{name} {value}' for name, value in values.items())}"] if values else []


def describe_stack_fit(stack_fit: StackFit) -> RenderableType:
    """Return a table of the figures that a fit to end-to-end runs found."""
    chosen = f", protocol {stack_fit.protocol}" if stack_fit.protocol else ""
    head = (
        f"figures of stack {stack_fit.stack}, fitted to {stack_fit.rows} runs of {stack_fit.runs}{chosen} at TP "
        f"{', '.join(map(str, stack_fit.tps))}\n"
    )
    cells: list[tuple[str, ...]] = []
    for name, figure in stack_fit.figures.items():
        verdict = "runs" if figure.identified else "prior"
        spread = (f"{100 * math.expm1(NORMAL_90 * sd):.0f} %" for sd in (figure.log_sd, figure.prior_log_sd))
        cells.append((name, *(f"{value:.3g}" for value in (figure.default, figure.value)), *spread, verdict))
    return Group(Text(head), table(FIGURE_HEADINGS, cells))


def _errors(profile: CalibrationProfile) -> Iterator[tuple[str, str, str, ErrorStats]]:
    """Name, grid points, what it was judged against, and error of every table and curve."""
    for name, ratios in tables_in(profile):
        for against, error in ratios.left_out.items():
            yield name, " x ".join(map(str, ratios.seconds.shape)), against, error
    for kind, tables in profile.moe.tables.items():
        for of, ratios in tables.items():
            for against, error in ratios.left_out.items():
                yield f"{TABLE_KINDS[kind].label} {of}", " x ".join(map(str, ratios.seconds.shape)), against, error
    for name, errors in profile.moe.left_out.items():
        layers = sum(f"experts {key.format}" == name for key in profile.moe.experts)
        for against, error in errors.items():
            yield name, str(layers), against, error
    for name, ranks, curve in (*curves_in(profile.collectives), *curves_in(profile.moe.collectives)):
        for against, error in curve.left_out.items():
            if against in ("aggregated", "held out"):
                yield f"{name}, {ranks} GPUs", str(len(curve.seconds)), against, error


def add_to(commands: Any) -> None:
    """Add `show` to the command line."""
    parser = commands.add_parser("show", help="print a profile's interpolation errors")
    parser.add_argument("profile", help="name of a shipped profile, or a file")
    parser.set_defaults(run=_show)


def _show(options: argparse.Namespace) -> None:
    show(describe(load_profile(options.profile)))
