"""Whether runs and single ops of a borrowed machine are as they should be, by what they left behind."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ladder_sim.errors import LadderSimError
from ladder_sim.traces.graph import REDUCES, TraceGraph
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim_calibration.fit.samples import SampleStore

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
