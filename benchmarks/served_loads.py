"""Measured servings served request by request, next to the closed form: the table of docs/load.md.

    python benchmarks/served_loads.py serving_dense.csv serving_moe.csv [--every 1 6] [--page docs/load.md]

The files are tables as `ladder-sim validate` reads them. Of each setup of a file every N-th row is taken, in order of
requests in flight and lengths, so that all engines, GPUs, models, plans and loads are there. All clients begin at once,
as with the tools that measured. Each sends as many requests as in a measured serving. Requests are of one length where
the campaign says that they go in lockstep; else lengths spread as it says, or by a fifth either way where it says
nothing: of one length they would be in lockstep here too, which the measured times contradict.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.errors import LadderSimError
from ladder_sim.prediction import resolve_profile
from ladder_sim.serve import Lengths, Service, Traffic
from ladder_sim.validation.serving_table import Serving, Setup, read_servings

# requests that each client sends: 8.2 in measured servings (`ladder_sim.closed_loop.cycle.ROUNDS`)
_ROUNDS = 8
# either way, of lengths whose spread is not known: judgement
SPREAD = 0.2
# requests in flight at which hardly any prompt waits for another
FEW = 4
_GROUPS = ((1, 8), (9, 32), (33, 128), (129, 4096))
_COLUMNS = (
    *("", "rows", "TPOT to the closed form: mean", "median", "p95", "largest"),
    *("TPOT to measured: mean", "of the closed form"),
)
_HEAD = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*\n.*\n(?:.+\n)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured serving, and both predictions: seconds."""

    serving: Serving
    ttft_s: float
    tpot_s: float
    closed_tpot_s: float

    @property
    def apart(self) -> float:
        """TPOT over the closed form's, less 1."""
        return self.tpot_s / self.closed_tpot_s - 1.0


def compare(servings: Iterable[Serving], *, every: int = 1, **changed: Any) -> tuple[list[Compared], dict[str, int]]:
    """Serve rows, maybe with other fields of `SchedulerSpec`; those that cannot be served are counted by reason."""
    groups: dict[Setup, list[Serving]] = {}
    for row in servings:
        if not row.left_out and row.gen > 1:
            groups.setdefault(row.setup, []).append(row)
    compared, missing = [], {}
    for setup, rows in groups.items():
        chosen = sorted(rows, key=lambda row: (row.concurrency, row.prompt, row.gen))[::every]
        try:
            compared += _compare(setup, chosen, changed)
        except LadderSimError as error:
            reason = error.message.split(":")[0]
            missing[reason] = missing.get(reason, 0) + len(chosen)
    return compared, missing


def _compare(setup: Setup, rows: Sequence[Serving], changed: Mapping[str, Any]) -> list[Compared]:
    scenario = setup.scenario(rows[0].concurrency, rows[0].prompt, rows[0].gen)
    loads = {name: [getattr(row, name) for row in rows] for name in ("concurrency", "prompt", "gen")}
    closed = simulate_requests(scenario, loads, ["standard"], resolve_profile(scenario, None))["standard"]
    traffics = [_traffic(row) for row in rows]
    # with room for the longest
    context = max(round((1.0 + SPREAD) * (row.prompt + row.gen)) for row in rows) + 2
    service = Service(scenario=scenario, context=context, changed=changed)
    compared = []
    for row, traffic, decode_s in zip(rows, traffics, np.atleast_1d(closed.decode_s), strict=True):
        outcome = service.run("standard", traffic, concurrency=row.concurrency)
        compared.append(
            Compared(
                serving=row,
                ttft_s=outcome.seconds("ttft"),
                tpot_s=outcome.seconds("tpot"),
                closed_tpot_s=float(decode_s) / (row.gen - 1),
            )
        )
    return compared


def _traffic(row: Serving) -> Traffic:
    # of the mean, either way
    spread = (1.0 - row.shortest) / (1.0 + row.shortest) or SPREAD
    if row.setup.arrivals == "lockstep":
        spread = 0.0

    def lengths(mean: int) -> Lengths:
        ends = f"uniform:{max(1, round(mean * (1 - spread)))}:{round(mean * (1 + spread))}"
        return Lengths.parse(ends if spread else str(mean))

    return Traffic(
        prompt=lengths(row.prompt),
        gen=lengths(row.gen),
        concurrency=row.concurrency,
        requests=_ROUNDS * row.concurrency,
    )


def section(compared: Sequence[Compared]) -> str:
    """The table by engine and by requests in flight, and a line on times to first token."""
    lines = [_line("all", compared)]
    names = sorted({_engine(each) for each in compared})
    lines += [_line(name, [each for each in compared if _engine(each) == name]) for name in names]
    for low, high in _GROUPS:
        members = [each for each in compared if low <= each.serving.concurrency <= high]
        lines += [_line(f"{low} to {high} in flight", members)] if members else []
    return _HEAD + "".join(lines) + "\n" + _first_tokens(compared)


def _engine(each: Compared) -> str:
    setup = each.serving.setup
    lockstep = ", lockstep" if setup.arrivals == "lockstep" else ""
    return f"{setup.stack.partition('@')[0]}{lockstep}"


def _line(name: str, members: Sequence[Compared]) -> str:
    apart = np.abs([each.apart for each in members])
    cells = [
        *(float(pick(apart)) for pick in (np.mean, np.median, lambda values: np.percentile(values, 95), np.max)),
        _mean_error(members, lambda each: each.tpot_s / each.serving.tpot_s),
        _mean_error(members, lambda each: each.closed_tpot_s / each.serving.tpot_s),
    ]
    return f"| {name} | {len(members)} | {' | '.join(f'{100 * cell:.1f} %' for cell in cells)} |\n"


def _mean_error(members: Sequence[Compared], ratio: Callable[[Compared], float]) -> float:
    return float(np.mean([abs(ratio(each) - 1.0) for each in members]))


def _first_tokens(compared: Sequence[Compared]) -> str:
    parts = []
    for engine in sorted({_engine(each) for each in compared}):
        members = [each for each in compared if _engine(each) == engine]
        few = [each for each in members if each.serving.concurrency <= FEW]
        more = [each for each in members if each.serving.concurrency > FEW]
        errors = [
            f"{100 * _mean_error(rows, lambda each: each.ttft_s / each.serving.ttft_s):.0f} % ({len(rows)} rows)"
            if rows
            else "-"
            for rows in (few, more)
        ]
        parts.append(f"{engine} {errors[0]}, {errors[1]}")
    return f"Mean error of TTFT with at most {FEW} in flight, and with more: {'; '.join(parts)}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measured servings, served request by request.")
    parser.add_argument("files", nargs="+", type=Path, help="tables of servings")
    parser.add_argument(
        "--every", type=int, nargs="+", help="take every N-th row of each setup: a number for each file"
    )
    parser.add_argument("--page", type=Path, help="write the table into this page")
    arguments = parser.parse_args()
    compared: list[Compared] = []
    missing: Counter[str] = Counter()
    for file, every in zip(arguments.files, arguments.every or [1] * len(arguments.files), strict=True):
        served, not_served = compare(read_servings(file.read_bytes(), file.name), every=every)
        compared += served
        missing.update(not_served)
    text = section(compared)
    sys.stdout.write(text)
    for reason, count in missing.items():
        sys.stdout.write(f"{count} rows are not served: {reason}\n")
    if arguments.page:
        page = arguments.page.read_text("utf-8")
        arguments.page.write_text(_TABLE.sub(lambda _: text, page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
