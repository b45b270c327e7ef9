"""``python -m tools.profiles.serving_checks FILE... --out FILE``: intervals of servings.

Errors are those of models that no fit had seen: the figures of engines are fitted to dense models without each in turn
(`tools.profiles.serving_fit`), and never to those with experts. Half-widths are by split conformal prediction: of all
models, of those of a kind (dense, or with experts), of an engine, and of its format. Errors of one model are alike, so
that models count, not rows: the width of n models is averaged with the wider group's, n to 2, in logarithms. With
n to 1 times per token score better than with one width in four of five models left out, with n to 2 or 3 in all five.
Within models of an engine, GPU and format the size of an error of times per token hardly depends on anything else: rank
correlations with shares of prompts, collectives, experts and unmeasured kernels, lengths and requests in flight are
0.13 at most.

First tokens come later than predicted by the more, the more requests are in flight, and hardly ever earlier. The two
sides have a quantile each, the later one next to a power of the requests in flight. The power is the one of the best
Winkler score on the rows that set the quantiles, so that a model left out chooses nothing. They are of all servings
together: with sides by engine and format, models left out score worse.

Prints how intervals from the other models hold each model's rows, next to one width for all (Winkler score, 90 %).
"""

import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from ladder_sim.closed_loop.checks import FirstTokenWidths, ServingWidths
from ladder_sim.des.shared import Floats
from ladder_sim.errors import exit_code
from ladder_sim.report.console import show, table
from ladder_sim.specs.workload import FORMATS
from ladder_sim.system.arguments import Parser
from ladder_sim.system.files import write_file
from ladder_sim.validation.dataset import read_table
from ladder_sim.validation.serving_table import Serving, read_servings
from ladder_sim_calibration.stack_fit.fit import conformal
from tools.profiles.serving_fit import Problem, fit_serving, log_errors

# of an engine on a GPU: fewer say little
LEAST_ROWS = 10
# models that a wider group's width counts as next to a group's own
_WIDER_MODELS = 2
# share of rows outside of an interval
_OUTSIDE = 0.1
# of the requests in flight
_POWERS = np.arange(0.0, 1.0, 0.05)
_HEAD = """\
# Measured servings that predictions were compared with, by engine and GPU: of aiconfigurator-core 0.12.0 (Apache-2.0),
# systems/silicon_sample.csv, without rows that are not predicted (ladder_sim/validation/data/campaigns.toml). sizes are
# the smallest and largest of these rows, batch the requests in flight. tpot_error is the mean, ttft_error the median
# error of rows whose model no fit had seen; by the same errors, widths are half-widths of 90 % intervals of TPOT, and
# first_token has the sides of those of TTFT in the logarithm. Written by
# `python -m tools.profiles.serving_checks serving_dense.csv serving_moe.csv --out checks.toml`
"""


class Unseen(NamedTuple):
    """A serving, and the errors of its prediction in the logarithm by a fit that had not seen its model."""

    serving: Serving
    experts: bool
    tpot: float
    ttft: float

    @property
    def places(self) -> Iterator[tuple[str, str]]:
        """Engine and format of the groups that it belongs to among models of its kind, the widest first."""
        engine, form = self.serving.setup.engine, FORMATS[self.serving.setup.scenario().workload.dtype].name
        yield from (("", ""), (engine, ""), (engine, form))


def unseen_of(servings: Sequence[Serving]) -> list[Unseen]:
    """Return the servings that are predicted, with their errors."""
    groups: dict[bool, list[Serving]] = {False: [], True: []}
    for row in servings:
        if not row.left_out:
            groups[bool(row.setup.scenario().model.experts)].append(row)
    made = []
    for experts, rows in groups.items():
        if rows:
            errors = log_errors(rows, *Problem(rows).times_s()) if experts else fit_serving(rows).log_errors["model"]
            columns = (errors[time].tolist() for time in ("tpot", "ttft"))
            made += [Unseen(row, experts, *both) for row, *both in zip(rows, *columns, strict=True)]
    return made


def widths(rows: Sequence[Unseen]) -> list[ServingWidths]:
    """Return half-widths of times per token by kind of model, engine and format."""
    return [
        ServingWidths(experts=experts, stack=stack, format=form, tpot=math.expm1(width))
        for (experts, stack, form), width in _log_widths(rows).items()
    ]


def _log_widths(rows: Sequence[Unseen]) -> dict[tuple[bool, str, str], float]:
    """Return half-widths in the logarithm; those of a wider group stand before those of its parts."""
    groups: dict[tuple[bool, str, str], list[Unseen]] = defaultdict(list)
    for row in rows:
        for place in row.places:
            groups[row.experts, *place].append(row)
    every = conformal([abs(row.tpot) for row in rows])
    found: dict[tuple[bool, str, str], float] = {}
    for (experts, stack, form), members in sorted(groups.items()):
        models = len({row.serving.setup.model for row in members})
        wider = found[experts, stack if form else "", ""] if stack else every
        own = conformal([abs(row.tpot) for row in members])
        found[experts, stack, form] = math.exp(
            (models * math.log(own) + _WIDER_MODELS * math.log(wider)) / (models + _WIDER_MODELS)
        )
    return found


def first_token_widths(rows: Sequence[Unseen]) -> FirstTokenWidths:
    """Return the sides of intervals of times to first token: each leaves out half of the rows outside."""
    errors, in_flight = np.array([row.ttft for row in rows]), np.array([row.serving.concurrency for row in rows])
    made = []
    for power in _POWERS:
        sides = FirstTokenWidths(
            earlier=_quantile(errors), later=_quantile(-errors / in_flight**power), power=float(power)
        )
        made.append((winkler(errors, sides.earlier, sides.later_of(in_flight)), sides))
    return min(made, key=lambda each: each[0])[1]


def _quantile(errors: Floats) -> float:
    """Return what one further error is above with half of the probability of a miss; the largest of few."""
    rank = math.ceil((1.0 - 0.5 * _OUTSIDE) * (len(errors) + 1))
    return max(0.0, float(np.sort(errors)[min(rank, len(errors)) - 1]))


def winkler(errors: Floats, earlier: Floats | float, later: Floats | float) -> float:
    """Return the mean Winkler score of intervals: their length, and a penalty for each miss.

    Errors are of predictions over measurements, in the logarithm, and intervals reach from `earlier` below the
    prediction to `later` above it.
    """
    missed = np.maximum(errors - earlier, 0.0) + np.maximum(-errors - later, 0.0)
    return float(np.mean(earlier + later + 2.0 / _OUTSIDE * missed))


def left_out(rows: Sequence[Unseen], time: str) -> Iterator[tuple[str, int, float, float, float, float]]:
    """Yield each model, its rows, the share inside intervals from other models, their width, score and one width's."""
    for model in dict.fromkeys(row.serving.setup.model for row in rows):
        own, others = ([row for row in rows if (row.serving.setup.model == model) == same] for same in (True, False))
        errors = np.array([getattr(row, time) for row in own])
        earlier, later = _tpot_sides(own, others) if time == "tpot" else _ttft_sides(own, others)
        one = conformal([abs(getattr(row, time)) for row in others])
        inside = float(np.mean((-later <= errors) & (errors <= earlier)))
        width = float(np.mean(0.5 * (earlier + later)))
        yield model, len(own), inside, width, winkler(errors, earlier, later), winkler(errors, one, one)


def _tpot_sides(rows: Sequence[Unseen], others: Sequence[Unseen]) -> tuple[Floats, Floats]:
    known = _log_widths(others)
    each = np.array(
        [
            next((known[key] for place in [*row.places][::-1] if (key := (row.experts, *place)) in known), 1.0)
            for row in rows
        ]
    )
    return each, each


def _ttft_sides(rows: Sequence[Unseen], others: Sequence[Unseen]) -> tuple[Floats, Floats]:
    sides = first_token_widths(others)
    return np.full(len(rows), sides.earlier), sides.later_of(np.array([row.serving.concurrency for row in rows]))


def checks(rows: Sequence[Unseen]) -> Iterator[Mapping[str, Any]]:
    """Yield what the servings of each engine on each GPU had, and how far off they were."""
    groups: dict[tuple[bool, str, str], list[Unseen]] = defaultdict(list)
    for row in rows:
        groups[row.experts, row.serving.setup.engine, row.serving.setup.cluster].append(row)
    for (_, stack, cluster), members in groups.items():
        if len(members) < LEAST_ROWS:
            continue
        servings = [row.serving for row in members]
        setups = [row.setup for row in servings]
        sizes = {
            "tp": [setup.plan.tp for setup in setups],
            "batch": [row.concurrency for row in servings],
            "prompt": [row.prompt for row in servings],
            "gen": [row.gen for row in servings],
        }
        yield {
            "stack": stack,
            "versions": _versions([setup.stack.partition("@")[2] for setup in setups]),
            "cluster": cluster,
            "models": sorted({setup.model for setup in setups}),
            "dtypes": sorted({setup.dtype for setup in setups}),
            "plans": sorted({setup.plan.kind for setup in setups}),
            "sizes": {name: [min(values), max(values)] for name, values in sizes.items()},
            "servings": len(members),
            "tpot_error": float(np.mean(np.abs(np.expm1([row.tpot for row in members])))),
            "ttft_error": float(np.median(np.abs(np.expm1([row.ttft for row in members])))),
        }


def _versions(names: Sequence[str]) -> str:
    """Return the first and the last release of an engine, as in "0.5.1 to 0.5.8"."""
    numbers = sorted({tuple(map(int, re.findall(r"\d+", name)[:3])) for name in names if name})
    ends = [".".join(map(str, each[:2] if each[2:] == (0,) else each)) for each in numbers]
    return " to ".join(dict.fromkeys((ends[0], ends[-1])))


def to_toml(rows: Sequence[Unseen]) -> str:
    """Return the file of checks and half-widths."""
    ordered = sorted(widths(rows), key=lambda each: (each.experts, each.stack, each.format))
    entries = [{name: getattr(each, name) for name in ServingWidths.__slots__} for each in ordered]
    lines = [f"    {_value({name: value for name, value in each.items() if value != ''})},\n" for each in entries]
    blocks = [
        "".join(("[[checks]]\n", *(f"{key} = {_value(value)}\n" for key, value in check.items())))
        for check in checks(rows)
    ]
    first = first_token_widths(rows)
    sides = {name: getattr(first, name) for name in FirstTokenWidths.__slots__}
    return "\n".join([_HEAD, f"first_token = {_value(sides)}\nwidths = [\n{''.join(lines)}]\n", *blocks])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(each)}' for key, each in value.items())} }}"
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value)


def main(argv: Sequence[str]) -> int:
    """Judge the intervals of tables of servings, and write them; returns the exit code."""
    parser = Parser(prog="python -m tools.profiles.serving_checks", description=__doc__)
    parser.add_argument("servings", nargs="+", help="CSV files of servings (docs/serving.md), or shipped tables' names")
    parser.add_argument("--out", type=Path, help="file to write")
    return exit_code(lambda: _run(parser.read(argv)))


def _run(given: Any) -> None:
    rows = unseen_of([row for name in given.servings for row in read_servings(*read_table(name))])
    headings = ("model left out", "rows", "inside", "half-width", "Winkler score", "of one width")
    for time in ("tpot", "ttft"):
        made = [*left_out(rows, time)]
        inside = sum(count * share for _, count, share, *_ in made) / len(rows)
        lines = [
            (model, str(count), f"{share:.0%}", f"{math.expm1(width):.0%}", f"{score:.3f}", f"{constant:.3f}")
            for model, count, share, width, score, constant in made
        ]
        show(
            Text(f"{time.upper()}: {inside:.0%} of {len(rows)} rows inside intervals from the other models"), sys.stdout
        )
        show(table(headings, lines, left=1), sys.stdout)
    if given.out:
        write_file(given.out, to_toml(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
