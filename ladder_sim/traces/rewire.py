"""Rewires a recorded forward pass: the kernels that ran, in the order that another residual wiring leaves them.

The blocks' all-reduces leave the compute stream for one of their own, and each block waits for the outputs that its
wiring joins (`variants.py`) instead of the block's before. A residual add that a wiring does later moves to where that
is; where an engine fuses adds into norms there is none to move, and the norms stay as they are.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import canonical, wiring
from ladder_sim.traces.blocks import Pass, find_passes
from ladder_sim.traces.graph import Lane, TraceGraph, TraceOp

REWIRED = ("standard", "parallel", "ladder", "hybrid-ladder:K", "upper-bound")
# name of the stream for all-reduces that ran among the kernels
COMM_LANE = "all-reduce"
# a cudaStreamWaitEvent, as in the shipped stacks (`ladder_sim/specs/data/stacks`): a physical default, not calibrated
STREAM_WAIT_S = 1e-6


def rewire(graph: TraceGraph, variant: str, *, stream_wait_s: float = STREAM_WAIT_S) -> TraceGraph:
    """The forward passes of a trace in another wiring.

    Parameters
    ----------
    graph
        A run in the standard wiring.
    variant
        One of `REWIRED`. Parallel leaves out the attention's all-reduces and keeps all kernels, so that it gains no
        wider GEMMs.
    stream_wait_s
        What it costs a stream to wait for another, where the trace does not show it because its all-reduces ran among
        the kernels.

    Raises
    ------
    UsageError
        The variant needs kernels that a standard run does not have, or there are no transformer blocks.
    """
    name = canonical(variant)
    if name.startswith("desync"):
        raise UsageError(
            f"variant '{variant}' adds the residual ahead of its all-reduces, in kernels that no standard trace holds",
            hint=f"rewire as {', '.join(REWIRED)}",
        )
    rewiring = _Rewiring(graph, stream_wait_s)
    for found in find_passes(graph):
        rewiring.rewire(found, name)
    return rewiring.result()


class _Rewiring:
    def __init__(self, graph: TraceGraph, stream_wait_s: float) -> None:
        self.graph = graph
        self.stream_wait_s = stream_wait_s
        self.lanes = list(graph.lanes)
        self.changed: dict[int, TraceOp] = {}
        # ops that now come just before this one
        self.moved: dict[int, list[int]] = {}
        self.dropped: set[int] = set()
        # lead of ops while they waited for an all-reduce
        self.waiting_s: dict[int, float] = {}
        self.before = graph.before_on_lane()
        self.followers = Counter(before for op in graph.ops for before in op.after)
        self.least_lead_s = [min((graph.ops[index].lead_s for index in queue), default=0.0) for queue in graph.queues()]

    def rewire(self, found: Pass, variant: str) -> None:
        if variant not in ("standard", "upper-bound"):
            for number, index in enumerate(found.reduces):
                if self.graph.ops[index].lane == found.lane:
                    self._free(found, number, index)
        if variant == "upper-bound":
            self._drop(found, found.reduces)
        elif variant == "parallel":
            self._drop(found, found.reduces[::2])
        else:
            self._join(found, variant)

    def result(self) -> TraceGraph:
        moving = {index for group in self.moved.values() for index in group}
        order = [
            index
            for position in range(len(self.graph.ops))
            if position not in moving
            for index in (*self.moved.get(position, ()), position)
        ]
        for index, op in enumerate(self.graph.ops):
            # what read the residual behind an add reads it ahead of that add now
            stale = {before for before in op.after if before in moving and self.graph.ops[before].lane == op.lane}
            if stale:
                known = self._op(index)
                self.changed[index] = replace(
                    known, after=tuple(before for before in known.after if before not in stale)
                )
        rewired = replace(self.graph, lanes=tuple(self.lanes)).arranged(order, self.changed)
        position = {old: new for new, old in enumerate(order)}
        return rewired.without({position[index] for index in self.dropped}) if self.dropped else rewired

    def _op(self, index: int) -> TraceOp:
        return self.changed.get(index, self.graph.ops[index])

    def _free(self, found: Pass, number: int, index: int) -> None:
        """Give an all-reduce that ran among the kernels a stream, let it wait for what it followed, and be awaited."""
        lane = Lane(name=COMM_LANE, rank=found.rank, device=self.lanes[found.lane].device)
        if lane not in self.lanes:
            self.lanes.append(lane)
        op, wait_s = self.graph.ops[index], self.stream_wait_s
        before = [self.before[index]] if index in self.before else []
        self.changed[index] = replace(
            op, lane=self.lanes.index(lane), after=tuple({*op.after, *before}), lead_s=op.lead_s + wait_s
        )
        for behind in found.segments[number][:1]:
            following = self.graph.ops[behind]
            self.changed[behind] = replace(following, after=(*following.after, index), lead_s=following.lead_s + wait_s)

    def _consumers(self, found: Pass, number: int) -> list[int]:
        """Ops behind an all-reduce that wait for it."""
        reduce = found.reduces[number]
        return [index for index in found.segments[number] if reduce in self._op(index).after]

    def _join(self, found: Pass, variant: str) -> None:
        """Let each block wait for the outputs it joins; adds that come later move to the end of the pass."""
        plan = wiring(variant, found.layers)
        joins = [block.joins for layer in plan.layers for block in layer.blocks]
        spare: list[int] = []
        for number, joined in enumerate([*joins[1:], plan.final_joins]):
            # the block behind all-reduce `number`, or the end of the pass
            outputs = [found.reduces[number + 1 - back] for back in joined]
            consumers = self._consumers(found, number) or list(found.segments[number][:1])
            added = next((index for index in consumers[:1] if self._op(index).kind == "add"), None)
            self._release(consumers, found.reduces[number])
            if not outputs and added is not None:
                spare.append(added)
                continue
            if added is not None and len(outputs) > 1:
                self._move(found, spare, added, outputs)
                outputs = outputs[-1:]
            self._await(consumers[:1], outputs)

    def _move(self, found: Pass, spare: list[int], ahead_of: int, outputs: Sequence[int]) -> None:
        """Put spare adds in front of an add, each behind its own output."""
        for output in outputs[:-1]:
            if spare:
                index = spare.pop(0)
                self.moved.setdefault(ahead_of, []).append(index)
                calls, calls_ahead_of = self._launch(index), self._launch(ahead_of)
                if calls and calls_ahead_of:
                    self.moved.setdefault(calls_ahead_of[0], []).extend(calls)
                self._await([index], (output,))
            else:
                self._await([ahead_of], (output,))

    def _launch(self, index: int) -> list[int]:
        """The call that enqueues an op and nothing else, and the CPU's time ahead of it."""
        calls = [call for call in self.graph.ops[index].after if self.graph.ops[call].kind == "launch"]
        alone = [call for call in calls if self.followers[call] == 1]
        ahead = [self.before[call] for call in alone if call in self.before]
        return sorted({*alone, *(gap for gap in ahead if self.graph.ops[gap].kind == "host")})

    def _drop(self, found: Pass, reduces: Sequence[int]) -> None:
        for number, index in enumerate(found.reduces):
            if index in reduces:
                self.dropped.add(index)
                for consumer in self._consumers(found, number):
                    self._quicken(consumer)

    def _await(self, consumers: Sequence[int], outputs: Sequence[int]) -> None:
        for consumer in consumers if outputs else ():
            op = self._op(consumer)
            self.changed[consumer] = replace(
                op, after=tuple({*op.after, *outputs}), lead_s=max(op.lead_s, self.waiting_s.get(consumer, 0.0))
            )

    def _release(self, consumers: Sequence[int], reduce: int) -> None:
        for consumer in consumers:
            op = self._op(consumer)
            self.waiting_s[consumer] = op.lead_s
            self.changed[consumer] = replace(op, after=tuple(before for before in op.after if before != reduce))
            self._quicken(consumer)

    def _quicken(self, consumer: int) -> None:
        """An op that waits for no other stream starts like the others of its lane."""
        op = self._op(consumer)
        self.changed[consumer] = replace(op, lead_s=min(op.lead_s, self.least_lead_s[op.lane]))
