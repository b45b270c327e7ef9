"""A measurement and its target, and how they are measured and printed."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement and its target, in the same unit."""

    name: str
    """What was measured."""
    value: float
    """Median, or peak for memory."""
    target: float | None
    """Upper limit, or lower limit where more is better; None: for comparison only."""
    unit: str
    """Of value and target."""
    more_is_better: bool = False

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.value >= self.target if self.more_is_better else self.value <= self.target
        return "met" if met else "MISSED"


def rate(name: str, per_s: float, minimum: float | None = None) -> Figure:
    return Figure(name=name, value=per_s, target=minimum, unit="/s", more_is_better=True)


def median_s(call: Callable[[], object], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def quietly(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")


def as_json(figures: Sequence[Figure]) -> str:
    return json.dumps([{**asdict(figure), "verdict": figure.verdict} for figure in figures], indent=1)


def as_table(figures: Sequence[Figure]) -> list[str]:
    """Lines of a Markdown table."""
    rows = [
        f"| {figure.name} | {shown(figure.value)} {figure.unit} | {target(figure)} | {figure.verdict} |"
        for figure in figures
    ]
    return ["| what | measured | target | |", "|---|---|---|---|", *rows]


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'at least' if figure.more_is_better else 'at most'} {shown(figure.target)}"
