"""All-reduce, residual add and norm in one kernel.

The kernel reads the rank's partial sums and the residual, and writes the new residual and its norm. It runs where the
all-reduce ran: if a block waits for it, nothing changes but that two kernels are one; in ladder the add and the norm of
the older block leave the compute stream.

References
----------
TokenWeave, arXiv 2505.11329; FlashInfer's kernels in vLLM (vllm-project/vllm#20691).
"""

from collections.abc import Mapping

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import COLLECTIVE_KINDS, ResidualOp
from ladder_sim.graph.techniques.rewriting import Step, layout_of, readers_of, steps_of

_REDUCE, _ADD, _NORM, _ADD_NORM = (ResidualOp(op) for op in ("all_reduce", "add", "norm", "add_norm"))


def rewrite(layout: Layout, *, adjacent: bool = False) -> Layout:
    """Fuse every all-reduce whose only reader adds it and is normalised.

    With `adjacent` only those that the very next kernel adds and normalises: what engines fuse by themselves.
    """
    steps = steps_of(layout)
    readers = readers_of(steps)
    if not layout.wiring.reduces and not adjacent:
        return _without_norms(layout, steps, readers)
    # the key of the fused op in place of each that it replaces
    fused: dict[int, int] = {}
    placed: dict[int, Step] = {}
    for at, step in enumerate(steps):
        if step.role != _REDUCE or len(readers[at]) != 1:
            continue
        (add,) = readers[at]
        norm = _norm_of(steps, readers, add)
        if norm is None or (adjacent and norm != at + 1):
            continue
        (residual,) = (fused.get(needed, needed) for needed in steps[add].after if needed != at)
        place = at
        if residual > at:
            if any(between.kind in COLLECTIVE_KINDS for between in steps[at + 1 : norm]):
                continue
            place = norm
        name = f"{steps[norm].name.removesuffix('norm')}all_reduce_norm"
        placed[place] = Step(
            name, "all_reduce_norm", steps[norm].layer, ResidualOp("all_reduce_norm"), (residual, *step.after)
        )
        fused |= dict.fromkeys((at, add, norm), place)
    kept = [(at, placed.get(at, step)) for at, step in enumerate(steps) if at in placed or at not in fused]
    return layout_of(
        layout, [(at, step.needing(tuple([fused.get(key, key) for key in step.after]))) for at, step in kept]
    )


def _without_norms(layout: Layout, steps: list[Step], readers: Mapping[int, list[int]]) -> Layout:
    """Leave out adds and norms that are part of an all-reduce, where all-reduces are left out."""
    # keys of what is left out, and of the block's output in its place: every older one is behind that
    instead: dict[int, int] = {}
    for at, step in enumerate(steps):
        if step.role in (_ADD, _ADD_NORM) and not isinstance(steps[step.after[-1]].role, ResidualOp):
            norm = _norm_of(steps, readers, at)
            instead |= {} if norm is None else dict.fromkeys((at, norm), step.after[-1])
    kept = [(at, step) for at, step in enumerate(steps) if at not in instead]
    return layout_of(
        layout, [(at, step.needing(tuple([instead.get(key, key) for key in step.after]))) for at, step in kept]
    )


def _norm_of(steps: list[Step], readers: Mapping[int, list[int]], add: int) -> int | None:
    """Return the key of the norm of what a step adds, maybe the step itself; None if there is no norm."""
    if steps[add].role == _ADD_NORM:
        return add
    norms = [reader for reader in readers[add] if steps[reader].role == _NORM] if steps[add].role == _ADD else []
    return norms[0] if norms else None
