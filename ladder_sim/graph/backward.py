"""A training step: a forward pass, its loss, and the same graph backward.

Every edge turns round, and every op becomes the one that makes the gradient of its input: what a wiring makes wait for
an all-reduce, or lets run ahead of it, is so backward as well. An all-reduce sums the ranks' parts of an output;
backward it sums their parts of that output's gradient, which is as late as the output was. Megatron's pair of
conjugate operators (arXiv 1909.08053) has as many all-reduces, each before the norm instead of after it.

A linear layer has two GEMMs backward: the gradient of its input, and that of its weights, which nothing waits for. That
of a block's first layer runs next to the collective that its input's gradient goes into (megatron-core
0.16.1, tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
"""

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import COLLECTIVE_KINDS, OpKind
from ladder_sim.graph.roles import Gradient, ResidualOp
from ladder_sim.graph.techniques.rewriting import Step, layout_of, readers_of, steps_of

_MIRRORED: dict[OpKind, OpKind] = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}

# what a block's first linear layers read: a norm, shares of it that were gathered, or the residual stream as it is
_BEFORE_BLOCK = ("norm", "all_gather", "embedding", "add", "all_reduce", "send")
_LINEAR = ("gemm", "lm_head")


def rewrite(layout: Layout, *, recompute: bool) -> Layout:
    """Follow a forward pass by its loss and its backward pass.

    Parameters
    ----------
    layout
        Of a forward pass.
    recompute
        Nothing but what enters a layer is kept: before its backward pass it runs forward once more.
    """
    whole = steps_of(layout)
    end = 1 + next(at for at, step in enumerate(whole) if step.kind == "lm_head")
    steps = whole[:end]
    readers = readers_of(steps)
    ordered = list(enumerate(steps))
    ordered.append((end, Step("loss", "activation", -1, ResidualOp("loss"), (end - 1,))))

    def key(at: int) -> int:
        """Of the gradient of a step's input; `end` further on, of that of its weights; then of what runs once more."""
        return end + 1 + at

    # gradients of weights until the next collective has been issued
    held: list[tuple[int, Step]] = []
    before = -1
    for at in reversed(range(end)):
        step = steps[at]
        if recompute and step.layer not in (before, -1):
            ordered += _once_more(steps, step.layer, key(2 * end))
        before = step.layer
        needed = tuple(key(reader) for reader in readers[at]) or (end,)
        kind = _MIRRORED.get(step.kind, step.kind)
        ordered.append((key(at), Step(f"{step.name}.backward", kind, step.layer, Gradient(step.role), needed)))
        if step.kind in _LINEAR:
            role = Gradient(step.role, of_weights=True)
            weights = key(end + at), Step(f"{step.name}.weights", step.kind, step.layer, role, needed)
            is_first = any(steps[need].kind in _BEFORE_BLOCK for need in step.after)
            (held if is_first else ordered).append(weights)
        elif step.kind in COLLECTIVE_KINDS:
            ordered += held
            held = []
    return layout_of(layout, [*ordered, *held])


def _once_more(steps: list[Step], layer: int, offset: int) -> list[tuple[int, Step]]:
    """A layer's forward pass, but for collectives that only other layers need: what enters it was kept."""
    own = [at for at, step in enumerate(steps) if step.layer == layer]
    needed = {need for at in own for need in steps[at].after}
    return [
        (
            offset + at,
            steps[at]._replace(
                name=f"{steps[at].name}.again", after=tuple(offset + need for need in steps[at].after if need in own)
            ),
        )
        for at in own
        if at in needed or steps[at].kind not in COLLECTIVE_KINDS
    ]
