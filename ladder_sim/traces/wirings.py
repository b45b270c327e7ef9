"""How long a recorded step would take in other wirings: the same kernels with the dependencies of another wiring.

All-reduces on the compute stream move to a stream of their own. Each block waits for the outputs that its wiring joins
instead of the output of the block before. A residual add that the wiring does later moves there. An engine that fuses
adds into norms has no adds to move; the norms stay as they are. One that runs an all-reduce in a kernel with the norm
behind it is taken to run both apart.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import Pass, find_passes
from ladder_sim.traces.graph import ALONE, HOST_KINDS, Collective, Lane, TraceGraph, TraceOp
from ladder_sim.traces.iterations import choose_step, step_position
from ladder_sim.traces.predicted import recorded_and_replayed, rewired_as_predicted
from ladder_sim.traces.replay import Contention, StepError, simulate, step_seconds, with_times
from ladder_sim.traces.summary import RankSummary, VariantTime, summarize_run
from ladder_sim.units import format_seconds
from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import canonical, parse

REWIRED = ("standard", "parallel", "ladder", "hybrid-ladder:K", "upper-bound")
# stream for all-reduces that ran on the compute stream
COMM_LANE = "all-reduce"
# a cudaStreamWaitEvent, as in the shipped stacks (`ladder_sim/specs/data/stacks`): a physical default, not calibrated
STREAM_WAIT_S = 1e-6


def rewire(graph: TraceGraph, variant: str, *, stream_wait_s: float = STREAM_WAIT_S) -> TraceGraph:
    """Return a trace of a standard run whose forward passes have another wiring, one of `REWIRED`.

    Standard is the recording itself. Parallel drops the attention's all-reduces and keeps all kernels, so it does not
    gain from wider GEMMs. A stream waits `stream_wait_s` for another: this is used for all-reduces on the compute
    stream, where the trace does not show it. Raises UsageError if the variant needs kernels that a standard run does
    not have, or there are no transformer blocks.
    """
    chosen = parse(variant)
    name = chosen.name
    if name not in REWIRED and (chosen.family.name != "ladder" or chosen.number > 1):
        raise UsageError(
            f"variant '{variant}' needs kernels that a standard run lacks, or another order of its adds",
            hint=f"choose {', '.join(REWIRED)}",
        )
    if name == "standard":
        return graph
    apart = _split_norms(graph)
    rewiring = _Rewiring(apart, stream_wait_s)
    for forward in find_passes(apart):
        rewiring.rewire(forward, name)
    return rewiring.result()


def _split_norms(graph: TraceGraph) -> TraceGraph:
    """Let every norm in an all-reduce be a kernel of its own, as wirings need it that move the all-reduce.

    It takes as long as the trace's own norms; the rest of the fused kernel is the all-reduce.
    """
    fused = sum(op.kind == "all_reduce_norm" for op in graph.ops)
    if not fused:
        return graph
    norms_s = [op.duration_s for op in graph.ops if op.kind == "norm"]
    if not norms_s:
        raise UsageError(
            "the trace's all-reduces hold the norms, and no norm of its own says how long one takes",
            hint="record without the fusion, or export one of --stack vllm@0.16, which does not fuse them",
        )
    norm_s = median(norms_s)
    # those that compute with a norm's result
    readers = {before: op.lane for op in reversed(graph.ops) if not op.communicates for before in op.after}
    ops: list[TraceOp] = []

    # where each op of the trace ends up, its norm for a fused one
    position: list[int] = []
    for index, op in enumerate(graph.ops):
        moved = replace(op, after=tuple(position[before] for before in op.after))
        if op.kind == "all_reduce_norm":
            own_s = min(norm_s, op.duration_s)
            middle_s = op.end_s - own_s
            ops.append(replace(moved, kind="all_reduce", duration_s=op.duration_s - own_s, end_s=middle_s))
            moved = replace(
                op,
                name="norm",
                kind="norm",
                lane=readers.get(index, op.lane),
                start_s=middle_s,
                # without the all-reduce it takes its whole time
                duration_s=norm_s,
                after=(len(ops) - 1,),
                lead_s=0.0,
                group=ALONE,
                collective=None,
            )
        position.append(len(ops))
        ops.append(moved)
    alone = f"a kernel of {format_seconds(norm_s)}, as the trace's others"
    note = f"{fused} all-reduces hold a norm, which stays with the computation: {alone}"
    return replace(graph, ops=tuple(ops), notes=(*graph.notes, note))


class _Rewiring:
    def __init__(self, graph: TraceGraph, stream_wait_s: float) -> None:
        self.graph = graph
        self.stream_wait_s = stream_wait_s
        self.lanes = list(graph.lanes)
        self.changed: dict[int, TraceOp] = {}

        # ops that move to just before this one
        self.moved: dict[int, list[int]] = {}
        self.dropped: set[int] = set()

        # lead of ops as long as they waited for an all-reduce
        self.waiting_s: dict[int, float] = {}
        self.before = graph.before_on_lane()
        self.followers: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(graph.ops):
            for before in op.after:
                self.followers[before].append(index)
        self.usual_lead_s = [
            median(graph.ops[index].lead_s for index in queue) if queue else 0.0 for queue in graph.queues()
        ]

    def rewire(self, forward: Pass, variant: str) -> None:
        if variant != "upper-bound":
            for number, index in enumerate(forward.reduces):
                if self.graph.ops[index].lane == forward.lane:
                    self._free(forward, number, index)
        if variant == "upper-bound":
            self._drop(forward, forward.reduces)
        elif variant == "parallel":
            self._drop(forward, forward.reduces[::2])
        else:
            self._join(forward, variant)

    def result(self) -> TraceGraph:
        moving = {index for group in self.moved.values() for index in group}
        order = [
            index
            for position in range(len(self.graph.ops))
            if position not in moving
            for index in (*self.moved.get(position, ()), position)
        ]
        for index, op in enumerate(self.graph.ops):
            # an op that read the residual after an add that moves now reads it before
            moved_adds = {before for before in op.after if before in moving and self.graph.ops[before].lane == op.lane}
            if moved_adds:
                self._change(index, after=tuple(set(self._op(index).after) - moved_adds))
        rewired = replace(self.graph, lanes=tuple(self.lanes)).arranged(order, self.changed)
        position = {old: new for new, old in enumerate(order)}
        return rewired.without({position[index] for index in self.dropped}) if self.dropped else rewired

    def _op(self, index: int) -> TraceOp:
        return self.changed.get(index, self.graph.ops[index])

    def _change(self, index: int, **fields: Any) -> None:
        self.changed[index] = replace(self._op(index), **fields)

    def _free(self, forward: Pass, number: int, index: int) -> None:
        """Move an all-reduce from the compute stream to its own. Its neighbours become its dependencies."""
        lane = Lane(name=COMM_LANE, rank=forward.rank, device=self.lanes[forward.lane].device)
        if lane not in self.lanes:
            self.lanes.append(lane)
        op, before = self._op(index), [self.before[index]] if index in self.before else []
        self._change(
            index, lane=self.lanes.index(lane), after=tuple({*op.after, *before}), lead_s=op.lead_s + self.stream_wait_s
        )
        for behind in forward.segments[number][:1]:
            op = self._op(behind)
            self._change(behind, after=(*op.after, index), lead_s=op.lead_s + self.stream_wait_s)

    def _consumers(self, forward: Pass, number: int) -> list[int]:
        reduce = forward.reduces[number]
        return [index for index in forward.segments[number] if reduce in self._op(index).after]

    def _aside(self, forward: Pass, number: int) -> list[int]:
        """Return the ops of other streams that compute and wait for the all-reduce: a part of the next block."""
        return [
            index
            for index in self.followers[forward.reduces[number]]
            if self._op(index).lane != forward.lane
            and self.lanes[self._op(index).lane].device
            and not self._op(index).communicates
        ]

    def _join(self, forward: Pass, variant: str) -> None:
        """Let each block wait for the outputs it joins, and move the adds that it does later."""
        plan = lay_out(variant, forward.layers)
        joins = [block.joins for layer in plan.layers for block in layer.blocks]
        spare: list[int] = []
        for number, joined in enumerate([*joins[1:], plan.final_joins]):
            # the block after all-reduce `number`, or the end of the pass
            outputs = [forward.reduces[number + 1 - back] for back in joined]
            consumers = self._consumers(forward, number) or list(forward.segments[number][:1])
            added = next((index for index in consumers[:1] if self._op(index).kind == "add"), None)
            self._release(consumers, forward.reduces[number])
            aside = self._aside(forward, number)
            self._release(aside, forward.reduces[number])
            # they still begin behind the block that the all-reduce ends
            self._await(aside, [*self._op(forward.reduces[number]).after, *outputs])
            if not outputs and added is not None:
                spare.append(added)
                continue
            if added is not None and len(outputs) > 1:
                self._move(forward, spare, added, outputs)
                outputs = outputs[-1:]
            self._await(consumers[:1], outputs)

    def _move(self, forward: Pass, spare: list[int], ahead_of: int, outputs: Sequence[int]) -> None:
        """Move spare adds to just before an add; each waits for an output."""
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
        """Return the call that enqueues only this op, and the CPU time before the call."""
        alone = [call for call in self.graph.launches(self.graph.ops[index]) if len(self.followers[call]) == 1]
        ahead = [self.before[call] for call in alone if call in self.before]
        return sorted({*alone, *(gap for gap in ahead if self.graph.ops[gap].kind == "host")})

    def _drop(self, forward: Pass, reduces: Sequence[int]) -> None:
        for number, index in enumerate(forward.reduces):
            if index in reduces:
                self.dropped.add(index)
                for consumer in self._consumers(forward, number):
                    self._shorten_lead(consumer)

    def _await(self, consumers: Sequence[int], outputs: Sequence[int]) -> None:
        for consumer in consumers if outputs else ():
            op = self._op(consumer)
            lead_s = max(op.lead_s, self.waiting_s.get(consumer, 0.0))
            self._change(consumer, after=tuple({*op.after, *outputs}), lead_s=lead_s)

    def _release(self, consumers: Sequence[int], reduce: int) -> None:
        for consumer in consumers:
            op = self._op(consumer)
            self.waiting_s[consumer] = op.lead_s
            self._change(consumer, after=tuple(before for before in op.after if before != reduce))
            self._shorten_lead(consumer)

    def _shorten_lead(self, consumer: int) -> None:
        """Give an op that no longer waits for another stream the usual lead of its lane."""
        op = self._op(consumer)
        self._change(consumer, lead_s=min(op.lead_s, self.usual_lead_s[op.lane]))


# after which times alone change by less than a percent
_ROUNDS = 4
# share of a step: smaller waits for absent ranks move no answer
_LEAST_WAITS = 0.01
DEFAULT_VARIANTS = ("standard", "ladder", "upper-bound")


def predict_variants(
    step: TraceGraph,
    variants: Sequence[str],
    *,
    stream_wait_s: float | None = None,
    contention: Contention | None = None,
    contended: bool = True,
) -> dict[str, VariantTime]:
    """Rewire one recorded iteration and simulate it, or what was predicted.

    Wirings are those of `rewire`, of a predicted run all that `predict` takes. A stream waits `stream_wait_s` for
    another; None: `STREAM_WAIT_S`, in a predicted run its stack's. `contention` is how ops of other wirings slow each
    other down; those that overlap in a recording did already. Ops of a predicted run slow each other, as they did when
    it was predicted, if they are `contended`.
    """
    names = list(dict.fromkeys(map(canonical, variants)))
    if step.origin is not None:
        return rewired_as_predicted(step, step.origin, names, stream_wait_s=stream_wait_s, contention=contended)
    stream_wait_s = STREAM_WAIT_S if stream_wait_s is None else stream_wait_s
    baseline_s, simulated = _rewired(step, names, stream_wait_s, contention)
    apart = _with_waits_as_work(step)
    apart_s, staying = (0.0, {}) if apart is step else _rewired(apart, names, stream_wait_s, contention)
    return {
        name: VariantTime(
            seconds=seconds,
            speedup=baseline_s / seconds,
            speedup_waits_stay=apart_s / staying[name][0] if staying else None,
            comm=RankSummary.of(graph, graph.ranks[0]),
            graph=graph,
        )
        for name, (seconds, graph) in simulated.items()
    }


def _rewired(
    step: TraceGraph, variants: Sequence[str], stream_wait_s: float, contention: Contention | None
) -> tuple[float, dict[str, tuple[float, TraceGraph]]]:
    """Return the seconds of a step as recorded, and in each wiring, with its ops at simulated times."""
    baseline_s, recorded = _simulated(step)
    alone = step if contention is None else _alone(step, contention)
    times = {}
    for variant in variants:
        rewired = rewire(alone, variant, stream_wait_s=stream_wait_s)
        times[variant] = (baseline_s, recorded) if rewired is alone else _simulated(rewired, contention)
    return baseline_s, times


def launch_share(step: TraceGraph) -> float:
    """Share of a step's critical path on which a CPU launches for a device, or works between its calls."""
    if not any(lane.device for lane in step.lanes):
        return 0.0
    summary = summarize_run(_simulated(step)[1])
    launching_s = sum(summary.critical_s.get(kind, 0.0) for kind in HOST_KINDS)
    return launching_s / summary.seconds if summary.seconds else 0.0


def _alone(step: TraceGraph, contention: Contention) -> TraceGraph:
    """Return the step with ops as long as they take alone; under contention they then take recorded times."""
    alone = step
    for _ in range(_ROUNDS):
        shared = simulate(alone, contention)
        shared_s = (shared.end_s - shared.start_s).tolist()
        ops = (
            replace(op, duration_s=op.duration_s * recorded.duration_s / seconds) if seconds > 0.0 else op
            for op, recorded, seconds in zip(alone.ops, step.ops, shared_s, strict=True)
        )
        alone = replace(step, ops=tuple(ops))
    return alone


def baseline(graph: TraceGraph, step: str | None) -> StepError:
    """Return the time of a trace's step (`choose_step`) as recorded, and as it is replayed alone."""
    chosen = choose_step(graph, step)
    if chosen.origin is not None:
        return recorded_and_replayed(chosen, chosen.origin)
    position = step_position(graph, step)
    replayed_s, _ = _simulated(chosen)
    return StepError(
        name="trace" if position is None else graph.steps[position],
        recorded_s=step_seconds(graph if position is not None else replace(graph, steps=()))[position or 0],
        replayed_s=replayed_s,
    )


def _simulated(graph: TraceGraph, contention: Contention | None = None) -> tuple[float, TraceGraph]:
    simulated = with_times(graph, simulate(graph, contention))
    return _seconds(simulated), simulated


def _seconds(step: TraceGraph) -> float:
    return step_seconds(replace(step, steps=()))[0]


def _with_waits_as_work(step: TraceGraph) -> TraceGraph:
    """Return a step whose waits for absent ranks are work of the blocks before them.

    A step with hardly any such waits is returned unchanged.
    With the traces of all ranks a collective starts when the last of them is ready. A rank alone shows only its own
    arrival: its collectives last longer by their waits for the slowest rank. What one takes beyond the shortest like it
    was such a wait, in which the slowest rank still worked: as work of the block ahead it stays in every wiring.
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
    waits_matter = waited_s > _LEAST_WAITS * _seconds(step)
    return replace(step, ops=tuple(ops)) if waits_matter else step


def _is_lone(op: TraceOp) -> bool:
    """Whether a collective may have waited for a rank that is not in the trace."""
    return op.communicates and op.group == ALONE and (op.collective is None or op.collective.ranks != 1)


def _like(op: TraceOp) -> tuple[str, str, Collective | None]:
    return op.kind, op.name_in_layer, op.collective
