"""What `calibrate evidence` brought home: runs next to predictions written before them, and to those of today.

An archive is a folder or a `.tar.gz` of one. `predicted.json` in it names every run that was planned, with the scenario
that predicts it; a run has a file of its own once it was measured.
"""

import contextlib
import json
import platform
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ladder_sim.answer import Answer
from ladder_sim.errors import LadderSimError, MissingDependencyError, SpecError, UsageError
from ladder_sim.prediction import predict
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.system.files import Schema, read_bytes
from ladder_sim.units import quoted
from ladder_sim.validation.runs import QUANTITIES, bootstrap
from ladder_sim.values import real, whole

PREDICTED, FAILURES = "predicted.json", "failures.json"
SCHEMA = Schema()
# of a run: seconds, and standard's time for a request over the variant's
FIGURES = {name: text for name, text in QUANTITIES.items() if name != "request_s"}
# repeats from which a median has a 95 % interval: that of five may lie outside of them all more often than that
MIN_REPEATS = 6
# of a file that is read; captures of runs may be larger, and are not
MOST_BYTES = 64 * 2**20
# seconds, or a ratio, of a figure that is compared
MOST = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant of one run; figures by the names of `FIGURES`, those that are not known left out."""

    run: str
    """Name of the run: that of its file."""
    variant: str
    """Canonical name of the wiring."""
    scenario: Mapping[str, Any]
    """Arguments of `Scenario`, but for the model and the cluster."""
    model: str
    """Catalog id, or a config.json in the archive."""
    predicted: Mapping[str, float]
    """Figures as they were predicted before the run."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Measured figures, medians of repeats; empty: it was not measured."""
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals of medians, where there are six repeats or more."""
    now: Mapping[str, float] = field(default_factory=dict)
    """Figures as this version predicts them."""

    def error(self, name: str, *, now: bool = False) -> float | None:
        """Return the predicted figure over the measured one, less 1; None: one of them is missing."""
        predicted, measured = (self.now if now else self.predicted).get(name), self.measured.get(name)
        return predicted / measured - 1.0 if predicted and measured else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Archive(Answer):
    """One archive."""

    shown_by = "archive.ArchiveReport"

    name: str
    """File or folder."""
    version: str
    """Version of ladder-sim that predicted."""
    commit: str
    """Commit of the clone that predicted; empty: it was no clone."""
    cluster: str
    """Catalog id of the cluster, or a file in the archive."""
    gpu: str
    """GPU as the driver calls it; empty: CPUs."""
    rehearsal: str
    """Why it is no evidence; empty: it is."""
    rows: tuple[Row, ...]
    """Every run that was planned, in the order of their worth."""
    failures: tuple[str, ...]
    """What was not measured or is not as expected, with the causes."""

    @property
    def measured(self) -> list[Row]:
        """Rows with a measurement."""
        return [row for row in self.rows if row.measured]

    def errors(self, name: str, *, now: bool = False) -> list[float]:
        """Return the absolute errors of a figure; those of standard's speedup, which is 1, left out."""
        rows = [row for row in self.rows if name != "speedup" or row.variant != "standard"]
        return [abs(error) for row in rows if (error := row.error(name, now=now)) is not None]

    @property
    def sentence(self) -> str:
        """How far off predictions are, in one line."""
        kind = f"rehearsal, no evidence ({self.rehearsal})" if self.rehearsal else f"evidence of {self.gpu}"
        before, today = (
            [f"{label} {spread}" for name, label in FIGURES.items() if (spread := _spread(self.errors(name, now=now)))]
            for now in (False, True)
        )
        off = f"predictions made before were off by {', '.join(before)}" if before else "nothing to compare"
        again = f"; today's by {', '.join(today)}" if today else ""
        return f"{self.name}: {kind}, {len(self.measured)} of {len(self.rows)} rows measured; {off}{again}."


def is_archive(path: Path) -> bool:
    """Whether a path names an archive or a folder: results of load generators are single files."""
    return path.is_dir() or path.name.endswith((".tar.gz", ".tgz"))


def read_archive(path: Path) -> Archive:
    """Read an archive and predict its runs again; an error if it is none, or damaged."""
    with _unpacked(path) as folder:
        if not (folder / PREDICTED).exists():
            raise UsageError(
                f"{path}: holds no {PREDICTED}",
                hint="give an archive of `ladder-sim calibrate evidence`, or its folder",
            )
        try:
            return _read(path.name, folder)
        except SpecError as fault:
            raise UsageError(f"{path}: damaged: {fault}", hint="copy it once more") from fault
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise UsageError(f"{path}: damaged: {type(fault).__name__} {fault}", hint="copy it once more") from fault


def scenario_of(arguments: Mapping[str, Any], model: str, cluster: str) -> Scenario:
    """Return the scenario that predicts a run, on a node that has as many GPUs as it takes."""
    spec = catalog.cluster(cluster)
    return Scenario(model=model, cluster=spec, gpus_per_node=max(int(arguments["tp"]), spec.gpus_per_node), **arguments)


def figures(scenario: Scenario, variants: Sequence[str]) -> dict[str, dict[str, float]]:
    """Predict a run: the figures of each variant."""
    predictions = predict(scenario, variants, ignore_memory=True)
    return {
        name: {"ttft_s": each.ttft_s, "speedup": each.speedup.value} | ({"tpot_s": each.tpot_s} if each.tpot_s else {})
        for name, each in predictions.items()
    }


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield path
        return
    if not hasattr(tarfile, "data_filter"):
        raise MissingDependencyError(
            f"{path}: Python {platform.python_version()} cannot unpack archives safely",
            hint="use Python 3.11.4 or newer, or unpack it yourself and name its folder",
        )
    with tempfile.TemporaryDirectory(prefix="ladder-sim-") as place:
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    parts = Path(member.name).parts
                    if member.isfile() and "traces" not in parts and member.size <= MOST_BYTES:
                        archive.extract(member, place, filter="data")
        except (OSError, EOFError, tarfile.TarError) as fault:
            raise UsageError(f"{path}: cannot be unpacked: {fault}", hint="copy it once more") from fault
        # packed with or without a folder around it
        yield next(iter(sorted(Path(place).rglob(PREDICTED))), Path(place) / PREDICTED).parent


def _read(name: str, folder: Path) -> Archive:
    head = _json(folder / PREDICTED)
    cluster = _inside(folder, head["cluster"])
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in head["rows"]:
        runs.setdefault(_text(row["run"], "run"), []).append(row)
    failures = _json(folder / FAILURES)["failures"] if (folder / FAILURES).exists() else ()
    return Archive(
        name=name,
        version=_text(head["ladder_sim"], "ladder_sim"),
        **{key: _text(head[key], key) for key in ("commit", "cluster", "gpu", "rehearsal")},
        rows=tuple(row for rows in runs.values() for row in _run(folder, cluster, rows)),
        failures=tuple(_text(each, "failure") for each in failures),
    )


def _run(folder: Path, cluster: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    arguments, variants = rows[0]["scenario"], [row["variant"] for row in rows]
    path = folder / f"{rows[0]['run']}.json"
    steps = whole(arguments["gen"], "gen", 1, 10**9) - 1
    measured, intervals = _of_bench(_json(path)["variants"], steps) if path.exists() else ({}, {})
    now: Mapping[str, Mapping[str, float]] = {}
    if measured and any("ttft_s" in row for row in rows):
        # what cannot be predicted any more has no figures
        with contextlib.suppress(LadderSimError):
            now = figures(scenario_of(arguments, _inside(folder, rows[0]["model"]), cluster), variants)
    for row in rows:
        name = row["variant"]
        yield Row(
            run=row["run"],
            variant=_text(name, "variant"),
            scenario=arguments,
            model=_text(row["model"], "model"),
            predicted=_figures(row),
            measured=measured.get(name, {}),
            interval=intervals.get(name, {}),
            now=now.get(name, {}),
        )


def _of_bench(
    variants: Mapping[str, Mapping[str, Any]], steps: int
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, tuple[float, float]]]]:
    """Return the medians, and their intervals, of a result of `run --bench`."""
    measured, intervals = {}, {}
    for name, result in variants.items():
        measured[name] = _figures(result)
        repeats = result.get("repeats", [])
        times = {"ttft_s": [real(each["ttft_s"], "ttft_s", MOST) for each in repeats]}
        if steps:
            times["tpot_s"] = [real(each["decode_s"], "decode_s", MOST) / steps for each in repeats]
        ends = {figure: bootstrap(np.array(each)) for figure, each in times.items() if len(each) >= MIN_REPEATS}
        if result.get("speedup_95"):
            low, high = result["speedup_95"]
            ends["speedup"] = real(low, "speedup_95", MOST), real(high, "speedup_95", MOST)
        intervals[name] = ends
    return measured, intervals


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: real(row[name], name, MOST) for name in FIGURES if row.get(name) is not None}


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {quoted(value)}: must be text")
    return value


def _spread(errors: Sequence[float]) -> str:
    return f"{fmean(errors):.1%} (at most {max(errors):.1%})" if errors else ""


def _inside(folder: Path, name: str) -> str:
    """Return a catalog id, or the path of a file in the archive's folder."""
    return str(folder / Path(name).name) if Path(name).suffix in (".json", ".toml") else name


def _json(path: Path) -> Any:
    document = json.loads(read_bytes(path, what="a file of an archive"))
    if "schema_version" in document and isinstance(document["schema_version"], int) and path.name == PREDICTED:
        SCHEMA.check(document, str(path), error=UsageError)
    return document
