"""The stages of `calibrate evidence`, the most valuable first; what one has measured is kept, whatever comes next."""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import typer

from ladder_sim import __version__
from ladder_sim.cli.run import Bench
from ladder_sim.costs.collectives.network import Network
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.memory import memory_use
from ladder_sim.costs.profile_file import is_shipped, load_profile, save_profile
from ladder_sim.display.document import Document
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.prediction import Prediction, predict, resolve_profile
from ladder_sim.report.archive import archive_figure, figure_text, markdown
from ladder_sim.report.figures.style import save_figure
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.system import processes
from ladder_sim.system.files import Schema, read_bytes, replacing, write_file
from ladder_sim.validation.archive import FAILURES, FIGURES, PREDICTED, figures, read_archive, scenario_of
from ladder_sim.values import whole
from ladder_sim_calibration.evidence.runs import (
    VARIANTS,
    PlannedRun,
    arguments_of,
    linked,
    links_here,
    of_captures,
    of_run,
    of_samples,
    own_files,
    planned,
)
from ladder_sim_calibration.fit.command import report
from ladder_sim_calibration.fit.profile import make_profile
from ladder_sim_calibration.fit.samples import SampleStore

# files of the folder; the first is of single ops that have begun, the second of those that are done
BEGUN, MEASURED = "ops.begun", "ops.measured"
SETTINGS, SAMPLES, PROFILE, FIT = "settings.json", "samples.jsonl", "profile.json.gz", "fit.txt"
RUNS, COMPARED, TRACES, TABLE, FIGURE = "runs.csv", "compared.json", "traces", "table.md", "figure.html"
CHECKS = "checks.json"
# of all of them that are JSON
SCHEMA = Schema()
# of the budget, for single ops; the rest is for runs
OPS_SHARE = 0.5
# the same where a table of runs is asked for
PAPER_OPS_SHARE = 0.1
# what an emulated all-reduce is looked up by: 1 KB to 1 GB
MESSAGES = tuple(1024.0 * 4**power for power in range(11))


class Evidence:
    """A folder, whose earlier results stay, and the stages that fill it.

    Real links join the ranks; with one rank, that stands for `--tp` of them. `machine` is its fingerprint
    (`ladder_sim_runtime.environment.environment`). Raises LadderSimError if an option is wrong, or the folder holds
    results of other options: nothing has been measured or changed then.
    """

    def __init__(self, folder: Path, options: argparse.Namespace, ranks: int, machine: Mapping[str, Any]) -> None:
        self._folder, self._options, self._ranks, self._machine = folder, options, ranks, machine
        self._tp = ranks if ranks > 1 else whole(options.tp, "--tp", 2, 1024)
        self._on_gpus = "gpu" in machine
        self._p2p = links_here() or not self._on_gpus or ranks == 1
        self._cluster = options.cluster or _cluster_of(machine)
        # files of one's own come along
        self._own = own_files(options, self._cluster, folder)
        whole(options.repeats, "--repeats", 1, 1_000_000)
        whole(options.warmups, "--warmups", 0, 1_000_000)
        if options.most is not None and not options.most > 0.0:
            raise UsageError(f"--most {options.most:g}: must be above 0", hint="for example --most 4096")
        # makes a scenario of each, which checks the other options
        self._runs = tuple(planned(options, self._cluster, ranks=ranks, on_gpus=self._on_gpus))
        self._claim()
        for given, kept in self._own.items():
            write_file(kept, read_bytes(Path(given), what="a config.json, or a cluster's .toml"))
        self._model, self._cluster = (str(self._own.get(name, name)) for name in (options.model, self._cluster))

    def collect(self, spend_s: float) -> list[str]:
        """Run every stage that is not done yet; return what could not be measured, or is not as expected."""
        failed: list[str] = []
        ops_share = PAPER_OPS_SHARE if self._options.paper else OPS_SHARE
        for name, stage in (
            ("predictions", self._predict()),
            ("runs", self._run_all(time.monotonic() + (1.0 - ops_share) * spend_s)),
            ("single ops", self._measure_ops(ops_share * spend_s)),
            ("profile", self._fit()),
            ("comparison", self._compare()),
            ("checks", self._check()),
        ):
            try:
                failed.extend(stage)
                # a borrowed machine may be taken away before the end
                self.pack()
            except Exception as error:
                # whatever it is, the other stages and the archive do not depend on it
                failed.append(f"{name}: {getattr(error, 'message', f'{type(error).__name__}: {error}')}")
        write_file(self._folder / FAILURES, json.dumps(SCHEMA.marked(failures=failed), indent=1))
        failed.extend(self._shown())
        return failed

    def _shown(self) -> Iterator[str]:
        """Yield a table and a figure of all runs next to their predictions."""
        try:
            archive = read_archive(self._folder)
            write_file(self._folder / TABLE, markdown(archive))
            save_figure(archive_figure(archive), self._folder / FIGURE)
        except Exception as error:
            yield f"table: {getattr(error, 'message', f'{type(error).__name__}: {error}')}"
            return
        print(archive.sentence, file=sys.stderr)
        if not archive.measured:
            yield "no run was measured: the lines above say why"

    def pack(self) -> Path:
        """Pack everything in one archive, in place of the last one."""
        path = self._folder.with_name(f"{self._folder.name}.tar.gz")
        with replacing(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            archive.add(self._folder, arcname=self._folder.name)
        return path

    def _claim(self) -> None:
        """Refuse to go on with results of other settings; write down those that results will have."""
        files = {given: hashlib.sha256(read_bytes(Path(given), what="a file")).hexdigest() for given in self._own}
        shared = {"model": self._options.model, "ranks": self._ranks, "tp": self._tp, "p2p": self._p2p, "files": files}
        shared["GPU"] = str(self._machine.get("gpu", ""))
        own = {
            "runs": {
                **shared,
                **{name: getattr(self._options, name) for name in ("prompt", "gen", "dtype", "repeats")},
            },
            "ops": {**shared, "most": self._options.most},
        }
        there = {
            "runs": any((self._folder / f"{run.name}.json").exists() for run in self._runs),
            "ops": (self._folder / SAMPLES).exists(),
        }
        path = self._folder / SETTINGS
        kept = json.loads(read_bytes(path, what="settings of evidence")) if path.exists() else {}
        for stage, settings in own.items():
            before = kept.get(stage, settings)
            for name in [name for name in settings if there[stage] and before.get(name) != settings[name]]:
                raise UsageError(
                    f"{self._folder} holds {stage} of {name} {before.get(name)}, not {settings[name]}",
                    hint="repeat that, or choose another folder: results of two settings are never mixed",
                )
        write_file(path, json.dumps(SCHEMA.marked(**own), indent=1))

    def _predict(self) -> Iterator[str]:
        """Yield every run with what the shipped profile predicts, before the first run; on CPUs it predicts nothing."""
        path, rows = self._folder / PREDICTED, []
        before = json.loads(read_bytes(path, what="predictions"))["rows"] if path.exists() else []
        known = {row["run"] for row in before}
        for run in self._runs:
            if run.name in known:
                continue
            arguments = arguments_of(run, self._options)
            predicted: Mapping[str, Mapping[str, float]] = {}
            try:
                predicted = figures(self._scenario(run), VARIANTS) if self._on_gpus else {}
            except LadderSimError as error:
                yield f"not predicted: {run.name}: {error.message}"
            own = {"run": run.name, "model": Path(self._model).name, "scenario": arguments}
            rows += [{**own, "variant": variant, **predicted.get(variant, {})} for variant in VARIANTS]
        if rows or not path.exists():
            head = {"ladder_sim": __version__, "commit": _commit(), "cluster": Path(self._cluster).name}
            head |= {"gpu": self._machine.get("gpu", ""), "rehearsal": self._rehearsal}
            write_file(path, json.dumps(SCHEMA.marked(**head, rows=[*before, *rows]), indent=1))

    @property
    def _rehearsal(self) -> str:
        """Why what is measured here is no evidence; empty: it is."""
        if not self._on_gpus:
            return f"CPUs, {self._ranks} ranks"
        return "one rank that stands for all, with emulated all-reduces" if self._ranks == 1 else ""

    def _run_all(self, end_s: float) -> Iterator[str]:
        """Run `run --bench` as every engine at every batch, the first with captures; yield what failed."""
        for run in self._runs:
            path = self._folder / f"{run.name}.json"
            if path.exists():
                continue
            reason = self._impossible(run)
            if not reason and time.monotonic() + (0.0 if run == self._first else self._expected_s(run)) > end_s:
                reason = "no time was left for it"
            if reason:
                yield f"not measured: {run.name}: {reason}"
                continue
            print(f"running {run.name}", file=sys.stderr)
            flags = run.flags(self._options)
            flags += [f"--trace={self._folder / TRACES}"] if run == self._first else []
            try:
                flags += ["--backend=emulate", f"--emulate={self._table(run)}"] if self._ranks == 1 else []
                variant = [",".join(VARIANTS)]
                bench = Bench(model=self._model, variant=variant, stack=run.stack, json=True, save=path)
                with linked(p2p=run.p2p):
                    bench.measure(flags)
            except (LadderSimError, typer.Exit) as error:
                # the others may fit; a run that failed has said why
                yield f"not measured: {run.name}: {getattr(error, 'message', 'it ended with an error')}"

    @cached_property
    def _first(self) -> PlannedRun | None:
        """The most valuable run that this machine can make."""
        return next((run for run in self._runs if not self._impossible(run)), None)

    def _impossible(self, run: PlannedRun) -> str:
        """Return why this machine cannot make a run; empty if it can."""
        if run.tp > self._ranks > 1:
            return f"there are {self._ranks} GPUs"
        if not self._on_gpus or (use := memory_use(self._scenario(run))).fits:
            return ""
        return f"it needs {use.total_bytes / 1e9:.0f} GB of each GPU"

    def _expected_s(self, run: PlannedRun) -> float:
        """Return the predicted seconds of all requests of a run; 0 if nothing is predicted."""
        if not (self._folder / PREDICTED).exists():
            return 0.0
        rows = json.loads(read_bytes(self._folder / PREDICTED, what="predictions"))["rows"]
        own = [row for row in rows if row["run"] == run.name]
        steps = self._options.gen - 1
        request_s: float = sum(row.get("ttft_s", 0.0) + steps * row.get("tpot_s", 0.0) for row in own)
        requests: int = self._options.repeats + self._options.warmups
        return request_s * requests

    def _table(self, run: PlannedRun) -> Path:
        """Return the path of a CSV with the predicted all-reduce times that a single rank waits for."""
        links = f"{run.stack}{'' if run.tp == self._tp else f'-tp-{run.tp}'}{'' if run.p2p else '-p2p-off'}"
        path, scenario = self._folder / f"all-reduce-{links}.csv", self._scenario(run)
        if not path.exists():
            profile = resolve_profile(scenario, None)
            network = Network(scenario, profile, Hardware.of(scenario, profile))
            seconds = network.times("all_reduce", np.array(MESSAGES)).seconds.tolist()
            rows = (f"{size:.0f},{each_s:.9g}" for size, each_s in zip(MESSAGES, seconds, strict=True))
            write_file(path, "\n".join(["bytes,seconds", *rows, ""]))
        return path

    def _measure_ops(self, spend_s: float) -> Iterator[str]:
        """Measure ops on all ranks; a call that was killed has the rest of its time."""
        samples, begun, done = (self._folder / name for name in (SAMPLES, BEGUN, MEASURED))
        if done.exists():
            return
        if begun.exists() and samples.exists():
            spend_s -= samples.stat().st_mtime - begun.stat().st_mtime
        else:
            write_file(begun, "")
        end_s = time.monotonic() + max(1.0, spend_s)
        while True:
            before = samples.stat().st_size if samples.exists() else 0
            command = ["ladder_sim_calibration", "run", f"--samples={samples}", f"--model={self._model}", "--overlap"]
            command += [f"--ranks={self._ranks}", f"--tp={self._tp}", f"--budget={end_s - time.monotonic():.0f}s"]
            command += [f"--most={self._options.most}"] if self._options.most else []
            # its stdout names a file that is one of several here
            code, _ = processes.run(command, capture=True)
            if not code:
                write_file(done, "")
                return
            grown = samples.exists() and samples.stat().st_size > before
            if not grown or time.monotonic() > end_s - 1.0:
                # an op that ends the process is a sample without a time: the next start leaves it out
                yield "single ops: they ended with an error; start the same command again to go on"
                return

    def _fit(self) -> Iterator[str]:
        """Fit a profile to the samples, save it, and yield a line on each error and on what was not measured."""
        fitted = make_profile(self._store, name="evidence", cluster=self._cluster, created=self._options.created)
        refused = (f"error above the limit: {line}" for line in fitted.refused)
        missing = [*self._unmeasured()]
        write_file(self._folder / FIT, "\n".join([*missing, *report(fitted), *refused, ""]))
        for line in missing:
            print(line, file=sys.stderr)
        save_profile(fitted.profile, self._folder / PROFILE)
        # none yields: a profile is judged by its reader
        yield from ()

    def _unmeasured(self) -> Iterator[str]:
        """Yield the kinds of ops of which no size has a time, with the reason."""
        # imported here: the other stages need no torch
        from ladder_sim_calibration.measure.points import Layout, ops_of

        most = {"most": self._options.most} if self._options.most else {}
        planned = ops_of(
            [catalog.model(self._model)], [self._tp], Layout(1, self._ranks), cuda=self._on_gpus, overlap=True, **most
        )
        timed = {sample.op for sample in self._store.samples if sample.seconds is not None}
        causes = {sample.op: sample.cause for sample in self._store.samples if sample.cause}
        for op, sizes in Counter(each.op for each in planned).items():
            if op not in timed:
                yield f"{op}: not measured, none of {sizes} sizes: {causes.get(op, 'no time was left')}"

    def _results(self) -> "Iterator[tuple[PlannedRun, dict[str, Any]]]":
        """Yield the runs that were measured, with their results."""
        for run in self._runs:
            path = self._folder / f"{run.name}.json"
            if path.exists():
                yield run, json.loads(path.read_text("utf-8"))

    def _check(self) -> Iterator[str]:
        """Whether GPUs did what their runs asked for; yields what is not as expected."""
        if not self._on_gpus:
            return
        checks = [*of_samples(self._store)] if (self._folder / SAMPLES).exists() else []
        for run, result in self._results():
            checks += of_run(run.name, result)
            if run == self._first:
                checks += of_captures(self._folder / TRACES, run.stack, result["shape"]["layers"])
        write_file(self._folder / CHECKS, _rows(check._asdict() for check in checks))
        for check in checks:
            if not check.holds:
                yield f"not as expected: {check.name}: {check.says}"

    @cached_property
    def _store(self) -> SampleStore:
        """Once single ops have been measured."""
        return SampleStore(self._folder / SAMPLES)

    def _scenario(self, run: PlannedRun) -> Scenario:
        return scenario_of(arguments_of(run, self._options), self._model, self._cluster)

    def _compare(self) -> Iterator[str]:
        """Yield every run next to its prediction by the measured profile, and write the runs as a table."""
        path = self._folder / PROFILE
        profile = load_profile(str(path)) if path.exists() else None
        compared: list[dict[str, Any]] = []
        runs: list[dict[str, Any]] = []
        for run, result in self._results():
            variants = result["variants"]
            if profile:
                predictions = predict(self._scenario(run), list(variants), profile=profile, ignore_memory=True)
                rows = [_compared(run, variants[name], predictions[name]) for name in variants]
                compared += rows
                for row in rows:
                    print(_line(row), file=sys.stderr)
            if run.allreduce == "own":
                # a table of runs has no column for another all-reduce
                runs += (self._run_row(run, name, measured) for name, measured in variants.items())
        if profile:
            write_file(self._folder / COMPARED, _rows(compared))
        else:
            yield "runs were not compared: there is no profile"
        if runs:
            write_file(self._folder / RUNS, Document(content={}, rows=runs).to_csv())

    def _run_row(self, run: PlannedRun, variant: str, measured: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "source": "emulated links" if self._ranks == 1 else "real links",
            # `validate` runs in the folder, which has another path at home
            "model": Path(self._model).name if self._options.model in self._own else self._model,
            "cluster": Path(self._cluster).name,
            "tp": run.tp,
            "p2p": int(run.p2p),
            "stack": run.stack,
            "variant": variant,
            "batch": run.batch,
            "prompt": self._options.prompt,
            "gen": self._options.gen,
            "tokens_per_s": f"{measured['tokens_per_s']:.6g}",
        }


def _compared(run: PlannedRun, measured: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
    """Return the predicted and measured figures of a variant; a single new token has no TPOT."""
    predicted = {"ttft_s": prediction.ttft_s, "tpot_s": prediction.tpot_s, "speedup": prediction.speedup.value}
    both = {
        figure: {"predicted": value, "measured": measured[figure]}
        for figure, value in predicted.items()
        if measured[figure] is not None
    }
    return {"run": run.name, "variant": prediction.variant, **both}


def _line(row: Mapping[str, Any]) -> str:
    texts = (
        f"{label} {', '.join(f'{figure_text(name, value)} {what}' for what, value in row[name].items())}"
        for name, label in FIGURES.items()
        if name in row
    )
    return f"{row['run']}, {row['variant']}: {'; '.join(texts)}"


def _cluster_of(machine: Mapping[str, Any]) -> str:
    """Return a cluster of the catalog with this machine's GPU, if possible with a shipped profile; on CPUs any."""
    device = str(machine.get("gpu", ""))
    names = [name for name in catalog.cluster_names() if device and catalog.cluster(name).gpu.is_called(device)]
    if device and not names:
        raise UsageError(f"no cluster of the catalog has a '{device}'", hint="--cluster FILE.toml describes this one")
    return min(names, key=lambda name: not is_shipped(name), default="h100-sxm")


def _commit() -> str:
    """Return the commit of the clone of this code, "-dirty" behind it if files differ; empty outside a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _rows(rows: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps(SCHEMA.marked(rows=list(rows)), indent=1)
