"""Runs of `calibrate evidence`, the most valuable first: the scenario that predicts each, and whether it went well."""

import argparse
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ladder_sim.costs.collectives.algorithms import ALL_REDUCE
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.specs.stack import AllReduce
from ladder_sim.traces.graph import REDUCES, TraceGraph
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim.validation.archive import scenario_of
from ladder_sim.values import whole
from ladder_sim_calibration.fit.samples import SampleStore

# all-reduces between GPUs that stand for an engine's own, as far as the links can do them
BETWEEN_GPUS: tuple[AllReduce, ...] = ("nccl", "one-shot", "multimem")
VARIANTS: tuple[str, ...] = ("standard", "parallel", "ladder", "upper-bound")


class PlannedRun(NamedTuple):
    """A `run --bench`."""

    name: str
    """Name of the run's file, without its ending."""
    stack: str
    """Stack that real passes follow."""
    batch: int
    tp: int
    p2p: bool = True
    """GPUs reach each other directly; else NCCL_P2P_DISABLE=1 is set."""
    allreduce: AllReduce | Literal["own"] = "own"
    """Kernel of all-reduces; own: the stack's, which an emulated link takes the time of."""

    def flags(self, options: argparse.Namespace) -> list[str]:
        """Return the options of `python -m ladder_sim_runtime bench` for this run."""
        sizes = {name: getattr(options, name) for name in ("prompt", "gen", "dtype", "repeats")}
        flags = [f"--tp={self.tp}", f"--batch={self.batch}", *(f"--{name}={value}" for name, value in sizes.items())]
        flags += [] if self.allreduce in ("own", "nccl") else [f"--allreduce={self.allreduce}"]
        return [*flags, f"--warmups={options.warmups}"]


def arguments_of(run: PlannedRun, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Scenario` for a run, without the model and the cluster."""
    return {
        "stack": run.stack,
        "allreduce": None if run.allreduce == "own" else run.allreduce,
        "tp": run.tp,
        "p2p": run.p2p,
        "batch": run.batch,
        **{name: getattr(options, name) for name in ("prompt", "gen", "dtype")},
    }


def planned(options: argparse.Namespace, cluster: str, *, ranks: int, on_gpus: bool) -> Iterator[PlannedRun]:
    """Yield every run: all batches and links at the first degree, then at the next one.

    Between GPUs NCCL, and kernels in symmetric memory, stand for those that an engine has of its own.
    """
    whole_tp = ranks if ranks > 1 else whole(options.tp, "--tp", 2, 1024)
    degrees = [_number(text, "--degrees") for text in options.degrees or (str(whole_tp),)]
    if ranks == 1:
        # a rank alone stands for several
        degrees = [tp for tp in degrees if tp > 1]
    for stack in options.stack:
        for tp in degrees:
            for batch in [_number(text, "--batch") for text in options.batch]:
                for p2p in links(options, on_gpus=on_gpus and ranks > 1):
                    if tp == 1 and not p2p:
                        continue
                    parts = (f"{stack}-batch-{batch}", f"tp-{tp}" * (tp != whole_tp), "p2p-off" * (not p2p))
                    run = PlannedRun("-".join(filter(None, parts)), stack, batch, tp, p2p)
                    scenario = scenario_of(arguments_of(run, options), options.model, cluster)
                    if ranks == 1 or not on_gpus or scenario.stack.allreduce == "nccl":
                        yield run
                        continue
                    for allreduce in BETWEEN_GPUS:
                        if not ALL_REDUCE[allreduce].unmet(scenario):
                            yield run._replace(name=f"{run.name}-{allreduce}", allreduce=allreduce)


def links_here() -> bool:
    """Whether GPUs reach each other directly, as far as the environment says."""
    return os.environ.get("NCCL_P2P_DISABLE") != "1"


@contextlib.contextmanager
def linked(*, p2p: bool) -> Iterator[None]:
    """Let ranks that are started meanwhile reach each other directly, or not."""
    before = os.environ.get("NCCL_P2P_DISABLE")
    if not p2p:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("NCCL_P2P_DISABLE", None)


def links(options: argparse.Namespace, *, on_gpus: bool) -> tuple[bool, ...]:
    """Return whether runs have peer-to-peer access, as asked for; by default as the environment has it."""
    if not options.p2p:
        return (links_here() or not on_gpus,)
    unknown = [text for text in options.p2p if text not in ("on", "off")]
    if unknown:
        raise UsageError(f"--p2p {unknown[0]}: must be on or off", hint="for example --p2p on,off")
    if "on" in options.p2p and on_gpus and not links_here():
        raise UsageError("--p2p on: NCCL_P2P_DISABLE is 1", hint="unset it")
    return tuple(text == "on" for text in options.p2p)


def _number(text: str, flag: str) -> int:
    return whole(int(text) if text.isdecimal() else text, flag, 1, 100_000)


def own_files(options: argparse.Namespace, cluster: str, folder: Path) -> dict[str, Path]:
    """Return the user's own files that come along: the given path, and the place in the folder."""
    return {
        given: folder / f"{name}{Path(given).suffix}"
        for name, given in (("model", options.model), ("cluster", cluster))
        if Path(given).suffix in (".json", ".toml")
    }


# kernels of a layer of a replayed decode step, at most, by stack: what torch.compile would not fuse, or combo_kernels
# not join, exceeds them
MAX_LAUNCHES: Mapping[str, int] = {"gpt-fast": 12, "vllm": 11}

# what libraries add to sum what they split
_OF_LIBRARIES = re.compile("splitKreduce|splitkv_combine")
_NO_KERNELS = frozenset({"host", "launch", "sync", "memcpy", "memset"})
# share of samples during which the clock fell: with more of them the GPU was not left to itself
MAX_BURSTS = 0.05
# what torch takes of what was planned: fused kernels need less, its allocator wastes some
MIN_TAKEN, MAX_TAKEN = 0.7, 1.05
# cuBLAS on Hopper: 32 MiB for each of three streams (c10/cuda, CUBLAS_WORKSPACE_CONFIG); the others are small
LIBRARY_BYTES = 128 * 2**20


class Check(NamedTuple):
    """One thing that was expected."""

    name: str
    """Name of what was checked."""
    holds: bool
    """Whether it is as expected."""
    says: str
    """What was measured, next to what was expected."""


def of_samples(store: SampleStore) -> Iterator[Check]:
    """Whether clocks were steady."""
    taken = [sample for sample in store.samples if sample.seconds is not None]
    bursts = sum(sample.burst for sample in taken)
    says = f"the clock fell during {bursts} of {len(taken)} samples, expected of {MAX_BURSTS:.0%} at most"
    yield Check("steady clocks", bursts <= MAX_BURSTS * len(taken), says)


def of_run(name: str, result: Mapping[str, Any]) -> Iterator[Check]:
    """Check a result of `run --bench` on GPUs: what the stack says was done, and ladder hides communication."""
    done = result["execution"]
    says = ", ".join(f"{part} {done[part]}" for part in ("decode", "blocks", "kernels"))
    yield Check(f"{name}: launches", not done["missing"], "; ".join([says, *done["missing"]]))
    memory = result["memory"]
    ratio = memory["reserved_bytes"] / memory["planned_bytes"]
    workspaces = LIBRARY_BYTES / memory["planned_bytes"]
    says = f"torch took {memory['reserved_bytes'] / 1e9:.1f} GB, {memory['planned_bytes'] / 1e9:.1f} GB were planned"
    yield Check(f"{name}: memory", MIN_TAKEN <= ratio <= MAX_TAKEN + workspaces, says)
    exposed = {
        variant: figures["exposed_comm_s"] / figures["comm_s"]
        for variant, figures in result["variants"].items()
        if variant in ("standard", "ladder") and figures.get("comm_s")
    }
    says = ", ".join(f"{variant} waits for {share:.0%} of its communication" for variant, share in exposed.items())
    yield Check(
        f"{name}: hidden communication", len(exposed) == 2 and exposed["ladder"] < exposed["standard"], says or "none"
    )


def of_captures(folder: Path, stack: str, layers: int) -> Iterator[Check]:
    """Check the captures of standard and ladder: a prefill, launched one by one, and then decode steps.

    Only the capture of the first rank is read: the other ranks run the same.
    """
    for variant in ("standard", "ladder"):
        try:
            graph = load([folder / variant / "rank0.json.gz"])
        except LadderSimError as error:
            yield Check(f"{variant}: capture", False, error.message)
            continue
        if stack in MAX_LAUNCHES:
            launches = kernels_per_layer(choose_step(graph, None), layers)
            says = f"{launches} kernels in a layer of a decode step, expected {MAX_LAUNCHES[stack]} at most"
            yield Check(f"{variant}: kernels", 0 < launches <= MAX_LAUNCHES[stack], says)
        yield _streams(variant, graph.of_step(0) if graph.steps else graph, layers)


def kernels_per_layer(step: TraceGraph, layers: int) -> int:
    """Return a layer's kernels that compute, without those that libraries add; the few around layers round down."""
    kernels = [
        op
        for op in step.ops
        if step.lanes[op.lane].device
        and not op.communicates
        and op.kind not in _NO_KERNELS
        and not _OF_LIBRARIES.search(op.name)
    ]
    return len(kernels) // layers


def _streams(variant: str, prefill: TraceGraph, layers: int) -> Check:
    """Check the all-reduces: under the computation on a stream of their own, the others on its own."""
    expected = 2 * layers - 1 if variant == "ladder" else 0
    computing = {op.lane for op in prefill.ops if op.kind == "gemm"}
    under = {index for index, op in enumerate(prefill.ops) if op.kind in REDUCES and op.lane not in computing}
    crossing = [
        (before, after)
        for after, op in enumerate(prefill.ops)
        for before in op.after
        if prefill.lanes[op.lane].device
        and prefill.lanes[prefill.ops[before].lane].device
        and prefill.ops[before].lane != op.lane
    ]
    there, back = sum(after in under for _, after in crossing), sum(before in under for before, _ in crossing)
    says = f"{len(under)} all-reduces on a stream of their own, {there} waits of theirs and {back} for them"
    return Check(f"{variant}: streams", len(under) == there == back == expected, f"{says}, expected {expected} of each")
