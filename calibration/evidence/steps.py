"""The steps of `calibrate evidence`. Each leaves a file when it is done, by which a run that was killed goes on."""

import argparse
import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import typer

from calibration.evidence.checks import Check, of_captures, of_device, of_ranks, of_run, of_samples
from calibration.evidence.faults import cause, faults
from calibration.fit.command import report
from calibration.fit.profile import make_profile
from calibration.fit.samples import SampleStore
from ladder_sim.cli.run import measure
from ladder_sim.costs.collectives.network import Network
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import is_shipped, load_profile, save_profile
from ladder_sim.display.document import Document
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.prediction import predict
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.values import whole
from ladder_sim.system import processes
from ladder_sim.system.files import read_bytes, replacing, write_file
from ladder_sim.system.schema import Schema
from ladder_sim.units import format_seconds

# files of the folder; the first is of a step that has begun, the second of one that is done
BEGUN, MEASURED = "ops.begun", "ops.measured"
SETTINGS, SAMPLES, PROFILE, FIT = "settings.json", "samples.jsonl", "profile.json.gz", "fit.txt"
RUNS, COMPARED, TRACES = "runs.csv", "compared.json", "traces"
TOKENS, FAULTS, CHECKS = "tokens.json", "faults.json", "checks.json"
# of settings, comparison and checks
SCHEMA = Schema()
# of the budget, for single ops; the rest is for runs
OPS_SHARE = 0.5
# what an emulated all-reduce is looked up by: 1 KB to 1 GB
MESSAGES = tuple(1024.0 * 4**power for power in range(11))
VARIANTS = "standard,parallel,ladder,upper-bound"
# what is compared: its name, and a value of it as text
FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "ttft_s": ("TTFT", format_seconds),
    "tpot_s": ("TPOT", format_seconds),
    "speedup": ("speedup", "{:.2f}".format),
}

# all-reduces between GPUs that stand for an engine's own; the last needs NVSwitch
BETWEEN_GPUS: tuple[AllReduce, ...] = ("nccl", "one-shot", "multimem")


class Run(NamedTuple):
    """A `run --bench`."""

    name: str
    """Of its file."""
    stack: str
    """As which it runs."""
    batch: int
    allreduce: AllReduce | Literal["own"] = "own"
    """Kernel of all-reduces; own: the stack's, which an emulated link takes the time of."""


class Evidence:
    """A folder, and the steps that fill it.

    Parameters
    ----------
    folder
        What earlier runs left in it stays.
    options
        Of the command.
    ranks
        With real links between them; 1: one rank stands for `--tp` of them.
    """

    def __init__(self, folder: Path, options: argparse.Namespace, ranks: int) -> None:
        self._folder, self._options, self._ranks = folder, options, ranks
        self._tp = ranks if ranks > 1 else whole(options.tp, "--tp", 2, 1024)
        # files of one's own come along
        self._own = {
            given: folder / f"{name}{Path(given).suffix}"
            for name, given in (("model", options.model), ("cluster", options.cluster or ""))
            if Path(given).suffix in (".json", ".toml")
        }
        self._model = str(self._own.get(options.model, options.model))

    def collect(self, spend_s: float) -> list[str]:
        """Every step that is not done yet; returns what could not be measured, or is not as expected."""
        self._begin()
        self._measure_ops(OPS_SHARE * spend_s)
        self._fit()
        failed = list(self._run_all(time.monotonic() + (1.0 - OPS_SHARE) * spend_s))
        self._compare()
        return [*failed, *self._check()]

    def pack(self) -> Path:
        """Everything in one archive, in place of the last one."""
        path = self._folder.with_name(f"{self._folder.name}.tar.gz")
        with replacing(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            archive.add(self._folder, arcname=self._folder.name)
        return path

    def _begin(self) -> None:
        names = ("model", "stack", "batch", "prompt", "gen", "repeats", "cluster", "most")
        settings = {name: getattr(self._options, name) for name in names}
        text = json.dumps(SCHEMA.marked(**settings, ranks=self._ranks, tp=self._tp), indent=1)
        path = self._folder / SETTINGS
        if path.exists() and path.read_text("utf-8") != text:
            raise UsageError(
                f"{self._folder} was begun with other options", hint="repeat them, or choose another folder"
            )
        for given, kept in self._own.items():
            write_file(kept, read_bytes(Path(given), what="a config.json, or a cluster's .toml"))
        write_file(path, text)

    def _measure_ops(self, spend_s: float) -> None:
        """On all ranks; a run that was killed has the rest of its time."""
        samples, begun, done = (self._folder / name for name in (SAMPLES, BEGUN, MEASURED))
        if done.exists():
            return
        if begun.exists() and samples.exists():
            spend_s -= samples.stat().st_mtime - begun.stat().st_mtime
        else:
            write_file(begun, "")
        command = ["calibration", "run", f"--samples={samples}", f"--model={self._model}", "--overlap"]
        command += [f"--ranks={self._ranks}", f"--tp={self._tp}", f"--budget={max(1.0, spend_s):.0f}s"]
        command += [f"--most={self._options.most}"] if self._options.most else []
        # its stdout names a file that is one of several here
        code, _ = processes.run(command, capture=True)
        if code:
            raise LadderSimError("single ops could not be measured", hint="start the same command again to go on")
        write_file(done, "")

    def _fit(self) -> None:
        """A profile of the samples, however good: what it is worth stands next to it."""
        if (self._folder / PROFILE).exists():
            return
        given = self._options.cluster
        cluster = str(self._own.get(given, given)) if given else _cluster_of(self._store.environment)
        fitted = make_profile(self._store, name="evidence", cluster=cluster, created=self._options.created)
        refused = (f"error above the limit: {line}" for line in fitted.refused)
        write_file(self._folder / FIT, "\n".join([*report(fitted), *refused, ""]))
        save_profile(fitted.profile, self._folder / PROFILE)

    def _run_all(self, end_s: float) -> Iterator[str]:
        """`run --bench` as every engine at every batch, the first with captures; yields what failed."""
        for number, run in enumerate(self._runs()):
            path = self._folder / f"{run.name}.json"
            if path.exists():
                continue
            if time.monotonic() > end_s:
                yield f"not measured: {run.name}: no time was left"
                continue
            print(f"running {run.name}", file=sys.stderr)
            flags = [f"--tp={self._tp}", f"--batch={run.batch}", "--dtype=bf16", f"--repeats={self._options.repeats}"]
            flags += [f"--prompt={self._options.prompt}", f"--gen={self._options.gen}", "--warmups=2"]
            flags += ["--backend=emulate", f"--emulate={self._table(run.stack)}"] if self._ranks == 1 else []
            flags += [f"--allreduce={run.allreduce}"] if run.allreduce not in ("own", "nccl") else []
            flags += [] if number else [f"--trace={self._folder / TRACES}"]
            try:
                measure(self._model, [VARIANTS], run.stack, None, True, path, flags)
            except (LadderSimError, typer.Exit) as error:
                # the others may fit; a run that failed has said why
                yield f"not measured: {run.name}: {getattr(error, 'message', 'it ended with an error')}"

    def _runs(self) -> Iterator[Run]:
        """Between GPUs NCCL, and kernels in symmetric memory, stand for those that an engine has of its own."""
        between_gpus = self._ranks > 1 and "gpu" in self._store.environment
        for stack in self._options.stack:
            for text in self._options.batch:
                name, batch = f"{stack}-batch-{text}", whole(int(text), "--batch", 1, 100_000)
                if not between_gpus or catalog.stack(stack).allreduce == "nccl":
                    yield Run(name, stack, batch)
                else:
                    for allreduce in BETWEEN_GPUS:
                        yield Run(f"{name}-{allreduce}", stack, batch, allreduce)

    def _results(self) -> "Iterator[tuple[Run, dict[str, Any]]]":
        """Of the runs that were measured."""
        for run in self._runs():
            path = self._folder / f"{run.name}.json"
            if path.exists():
                yield run, json.loads(path.read_text("utf-8"))

    def _check(self) -> Iterator[str]:
        """What only GPUs can show; yields what is not as expected."""
        environment = self._store.environment
        if "gpu" not in environment:
            return
        checks = [*of_samples(self._store), *of_device()]
        if self._ranks > 1:
            checks += self._once(TOKENS, of_ranks(self._ranks))
        causes = faults(self._ranks, int(environment.get("gpus", 1)))
        checks += self._once(FAULTS, (cause(fault, self._model) for fault in causes))
        for run, result in self._results():
            checks += of_run(run.name, result)
            if run == next(self._runs()):
                checks += of_captures(self._folder / TRACES, run.stack, result["shape"]["layers"])
        write_file(self._folder / CHECKS, _rows(check._asdict() for check in checks))
        for check in checks:
            if not check.holds:
                yield f"not as expected: {check.name}: {check.says}"

    def _once(self, name: str, checks: Iterator[Check]) -> list[Check]:
        """Those of a file if it is there; else they are made now, which takes minutes, and written to it."""
        path = self._folder / name
        if not path.exists():
            print(f"checking {path.stem}", file=sys.stderr)
            write_file(path, _rows(check._asdict() for check in checks))
        return [Check(**row) for row in json.loads(path.read_text("utf-8"))["rows"]]

    def _table(self, stack: str) -> Path:
        """The all-reduces that a single rank waits for, as the profile predicts them."""
        path, scenario = self._folder / f"all-reduce-{stack}.csv", self._scenario(Run("", stack, 1))
        network = Network(scenario, self._profile, Hardware.of(scenario, self._profile))
        seconds = network.times("all_reduce", np.array(MESSAGES)).seconds.tolist()
        rows = (f"{size:.0f},{each_s:.9g}" for size, each_s in zip(MESSAGES, seconds, strict=True))
        write_file(path, "\n".join(["bytes,seconds", *rows, ""]))
        return path

    @cached_property
    def _store(self) -> SampleStore:
        """Once single ops have been measured."""
        return SampleStore(self._folder / SAMPLES)

    @cached_property
    def _profile(self) -> CalibrationProfile:
        return load_profile(str(self._folder / PROFILE))

    def _scenario(self, run: Run) -> Scenario:
        sizes = {"batch": run.batch, "prompt": self._options.prompt, "gen": self._options.gen}
        return Scenario.of(
            model=self._model,
            cluster=self._profile.cluster,
            stack=run.stack,
            allreduce=None if run.allreduce == "own" else run.allreduce,
            tp=self._tp,
            gpus_per_node=max(self._tp, self._profile.cluster.gpus_per_node),
            **sizes,
        )

    def _compare(self) -> None:
        """Predict every run from the profile; the measured ones become a table of runs as well."""
        compared: list[dict[str, Any]] = []
        runs: list[dict[str, Any]] = []
        for run, result in self._results():
            predictions = predict(self._scenario(run), list(result["variants"]), profile=self._profile)
            for variant, measured in result["variants"].items():
                predicted = predictions[variant]
                values = (predicted.ttft_s, predicted.tpot_s, predicted.speedup.value)
                # a single new token has no TPOT
                both = {
                    figure: {"predicted": value, "measured": measured[figure]}
                    for figure, value in zip(FIGURES, values, strict=True)
                    if measured[figure] is not None
                }
                compared.append({"run": run.name, "variant": variant, **both})
                texts = (
                    f"{name} {show(both[figure]['predicted'])} predicted, {show(both[figure]['measured'])} measured"
                    for figure, (name, show) in FIGURES.items()
                    if figure in both
                )
                print(f"{run.name}, {variant}: {'; '.join(texts)}", file=sys.stderr)
                if run.allreduce != "own":
                    # a table of runs has no column for it
                    continue
                runs.append(
                    {
                        "source": "emulated links" if self._ranks == 1 else "real links",
                        # `validate` runs in the folder, which has another path at home
                        "model": Path(self._model).name if self._options.model in self._own else self._model,
                        "cluster": Path(self._profile.cluster_name).name,
                        "tp": self._tp,
                        "stack": run.stack,
                        "variant": variant,
                        "batch": run.batch,
                        "prompt": self._options.prompt,
                        "gen": self._options.gen,
                        "tokens_per_s": f"{measured['tokens_per_s']:.6g}",
                    }
                )
        write_file(self._folder / COMPARED, _rows(compared))
        if runs:
            write_file(self._folder / RUNS, Document(content={}, rows=runs).to_csv())


def _cluster_of(machine: Mapping[str, Any]) -> str:
    """A cluster of the catalog with the GPU that was measured, one with a shipped profile if there is; on CPUs any."""
    device = str(machine.get("gpu", ""))
    names = [name for name in catalog.cluster_names() if device and catalog.cluster(name).gpu.is_called(device)]
    if device and not names:
        raise UsageError(f"no cluster of the catalog has a '{device}'", hint="--cluster FILE.toml describes this one")
    return min(names, key=lambda name: not is_shipped(name), default="h100-sxm")


def _rows(rows: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps(SCHEMA.marked(rows=list(rows)), indent=1)
