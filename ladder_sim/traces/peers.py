"""Waits for ranks without a trace.

With the traces of all ranks a collective starts when the last of them is ready. A rank alone shows only its own
arrival: its collectives last longer by their waits for the slowest rank. What one takes beyond the shortest like it was
such a wait, in which the slowest rank still worked: as work of the block ahead it stays in every wiring.
"""

from dataclasses import replace

from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.graph import ALONE, Collective, TraceGraph, TraceOp
from ladder_sim.traces.replay import step_seconds

# share of a step: a smaller wait moves no answer
_LEAST = 0.01


def with_waits_as_work(step: TraceGraph) -> TraceGraph:
    """A step whose waits for absent ranks are work of the blocks ahead of them; the same object if it has hardly any.

    Raises
    ------
    UsageError
        It has no forward pass in the standard wiring.
    """
    shortest_s: dict[tuple[str, str, Collective | None], float] = {}
    for op in filter(_is_lone, step.ops):
        shortest_s[_like(op)] = min(op.duration_s, shortest_s.get(_like(op), op.duration_s))
    awaited, ops, waited_s = step.awaited(), list(step.ops), 0.0
    for forward in find_passes(step):
        for reduce in forward.reduces:
            op = step.ops[reduce]
            wait_s = op.duration_s - shortest_s[_like(op)] if _is_lone(op) else 0.0
            # on CPUs its thread may wake up in between
            ahead = {*awaited[reduce], *(first for before in awaited[reduce] for first in awaited[before])}
            block = [before for before in ahead if ops[before].lane == forward.lane and not ops[before].communicates]
            if wait_s > 0.0 and block:
                last = max(block)
                ops[last] = replace(ops[last], duration_s=ops[last].duration_s + wait_s)
                ops[reduce] = replace(op, duration_s=op.duration_s - wait_s)
                waited_s += wait_s
    waits_matter = waited_s > _LEAST * step_seconds(replace(step, steps=()))[0]
    return replace(step, ops=tuple(ops)) if waits_matter else step


def _is_lone(op: TraceOp) -> bool:
    """Whether a collective may have waited for a rank that is not in the trace."""
    return op.communicates and op.group == ALONE and (op.collective is None or op.collective.ranks != 1)


def _like(op: TraceOp) -> tuple[str, str, Collective | None]:
    return op.kind, op.name_in_layer, op.collective
