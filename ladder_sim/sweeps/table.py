"""A sweep's results in memory, by column, and how sure they are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.answer import Answer, frame_of
from ladder_sim.confidence import Confidence
from ladder_sim.display.document import Notes
from ladder_sim.display.labels import field_label, field_text
from ladder_sim.errors import LadderSimError, UnknownNameError, UsageError
from ladder_sim.prediction import predict
from ladder_sim.sweeps.evaluate import PROBLEM, Rows, SweepOptions, result_columns
from ladder_sim.sweeps.files import csv_of
from ladder_sim.sweeps.grid import Grid, scenario_at
from ladder_sim.sweeps.price import PRICE_CAVEAT
from ladder_sim.system.files import write_file
from ladder_sim.units import quoted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SweepTable(Answer):
    """One row per point, in the grid's order; one column per field of the scenario, per axis and per variant's figure.

    Examples
    --------
    >>> from ladder_sim import Scenario, sweep
    >>> table = sweep(Scenario(model="8b"), {"tp": "1:4"}, ["ladder"])
    >>> [int(tp) for tp in table["tp"]], bool(table["ladder.speedup"][2] > 1)
    ([1, 2, 4], True)
    """

    shown_by = "sweep.SweepReport"

    columns: dict[str, NDArray[Any]]
    """Columns by name, in SI units."""
    varied: tuple[str, ...]
    """Axes with several values, the slowest first."""
    units: Mapping[str, str]
    """Unit in which the values of each axis were typed; empty for none, or several."""
    variants: tuple[str, ...]
    """Residual wirings, in columns such as "ladder.speedup"."""
    grid: Grid
    """The points that were asked for."""
    options: SweepOptions
    """What they share, other than the axes."""

    def __len__(self) -> int:
        return len(self.columns[PROBLEM])

    def __getitem__(self, name: str) -> NDArray[Any]:
        if not isinstance(name, str):
            raise UsageError(
                f"column {quoted(name)}: must be text, the name of a column", hint="rows are places in its array"
            )
        if name not in self.columns:
            raise UnknownNameError("column", name, self.columns)
        return self.columns[name]

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Rows that have figures."""
        feasible: NDArray[np.bool_] = self[PROBLEM] == ""
        return feasible

    def where(self, rows: NDArray[np.bool_]) -> "SweepTable":
        """Return the rows that a mask keeps."""
        return replace(self, columns={name: values[rows] for name, values in self.columns.items()})

    @property
    def notes(self) -> Notes:
        """What the reader should know about the predictions; it takes some of them."""
        return sweep_notes(self.grid, self.options)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the lines that ``ladder-sim sweep --csv`` prints, and write them to `path` if given."""
        text = csv_of(self.columns, result_columns(self.options))
        if path is not None:
            write_file(Path(path), text)
        return text

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame, one row a point, with the table's columns; raise an error without pandas."""
        return frame_of(self.columns)


def collect(parts: Iterable[Sequence[Rows]], grid: Grid, options: SweepOptions) -> SweepTable:
    """Return one table from the rows of all chunks, in their order."""
    rows = [block for part in parts for block in part]
    lengths = [len(block) for block in rows]
    columns: dict[str, NDArray[Any]] = {
        name: np.repeat(_column([block.constants[name] for block in rows]), lengths) for name in rows[0].constants
    }
    varying = [block.columns for block in rows]
    columns |= {name: np.concatenate([block[name] for block in varying]) for name in varying[0]}
    columns[PROBLEM] = np.repeat(np.array([block.problem for block in rows], object), lengths)
    units = {axis.name: axis.unit for axis in grid.varied}
    return SweepTable(
        columns=columns, varied=tuple(units), units=units, variants=options.variants, grid=grid, options=options
    )


def _column(values: list[Any]) -> NDArray[Any]:
    """Return numbers as numbers, names as Python strings: no copy of a name per row."""
    numeric = all(isinstance(value, int | float) for value in values)
    return np.array(values) if numeric else np.array(values, object)


# values of an axis that are looked at one by one; of more, and of numbers in ranges, the ends
_FEW = 16


def sweep_notes(grid: Grid, options: SweepOptions) -> Notes:
    """Return what the reader of a sweep should know."""
    about = () if options.usd_per_gpu_hour is None else (PRICE_CAVEAT,)
    return Notes(confidences=confidences(grid, options), about=about)


def confidences(grid: Grid, options: SweepOptions) -> dict[str, Confidence]:
    """Return the confidence at each value of each axis, with the others' last or first values; only what runs."""
    bases = [{each.name: each.values[end] for each in grid.axes} for end in (-1, 0)]
    points = {
        f"{field_label(each.name)} {field_text(each.name, getattr(value, 'name', value), each.unit)}": [
            {**base, each.name: value} for base in bases
        ]
        for each in grid.varied
        for value in (each.values if len(each.values) <= _FEW else (each.values[0], each.values[-1]))
    }
    answers = {}
    for name, tried in (points or {"": bases[:1]}).items():
        for point in tried:
            try:
                scenario = scenario_at(point)
                answers[name] = predict(
                    scenario, grid.variants, profile=options.profile, ignore_memory=options.ignore_memory
                ).confidence
                break
            except LadderSimError:
                continue
    return answers
