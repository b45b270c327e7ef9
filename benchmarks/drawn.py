"""Figures that hold the numbers that they draw, and figures that commands draw."""

import contextlib
import io
import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np

from ladder_sim.cli.main import main as ladder_sim
from ladder_sim.report.figures import style

if TYPE_CHECKING:
    import plotly.graph_objects as go

_NUMBERS = re.compile(r"<metadata>(.*?)</metadata>", re.DOTALL)


def drawn_by(commands: Sequence[str]) -> "go.Figure":
    """The figure that commands draw, without a browser."""
    with (
        TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        patch.object(style, "save_figure") as saved,
    ):
        for command in commands:
            if ladder_sim(shlex.split(command)[1:]):
                raise RuntimeError(f"{command} failed")
    drawn, _ = saved.call_args.args
    return drawn


def numbers(drawn: "go.Figure") -> list[list[float]]:
    """What a figure draws: the numbers of each trace, to four digits, and labels that are numbers."""
    rows = []
    for trace in drawn.data:
        values = [trace[key] for key in ("base", "x", "y", "z", "text") if key in trace and trace[key] is not None]
        for bars in ("error_x", "error_y"):
            if bars in trace:
                values += [trace[bars][end] for end in ("array", "arrayminus") if trace[bars][end] is not None]
        flat = [each for column in values for each in np.ravel(np.asarray(column, dtype=object))]
        rows.append([float(f"{number:.4g}") for each in flat if math.isfinite(number := _number(each))])
    return rows


def _number(value: object) -> float:
    """NaN of what is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def drawn_numbers(file: Path) -> list[list[float]]:
    """The numbers that a file draws."""
    (text,) = _NUMBERS.findall(file.read_text("utf-8"))
    rows: list[list[float]] = json.loads(text)
    return rows


def save(drawn: "go.Figure", file: Path) -> None:
    """Write a figure with the numbers that it draws."""
    style.save_figure(drawn, file)
    svg = file.read_text("utf-8").removesuffix("</svg>")
    file.write_text(f"{svg}<metadata>{json.dumps(numbers(drawn))}</metadata></svg>\n", "utf-8")
