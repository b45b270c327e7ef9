"""The fast engine: one pass over a program in issue order, for one configuration or thousands at once.

A task starts when earlier tasks end, and their ends are known when its turn comes, so one pass gives every time
exactly. Only kernels that share a GPU with a collective need more: a collective stays open while later kernels are
issued, and is closed when a task waits for it (`comm_queue.py`). Where durations are arrays, every step is a numpy
operation over all configurations. These differ in numbers, not in structure.

The results equal those of `engine.run` up to rounding. Sharing is possible in programs of one rank with one compute
stream and one communication stream. Programs of several ranks must share nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ladder_sim.des.comm_queue import SingleQueue, VectorQueue
from ladder_sim.des.program import NO_GROUP, Outline, Program
from ladder_sim.des.shared import Device, Number, maximum
from ladder_sim.des.timeline import TaskTimes, Timeline

CANNOT_SHARE = (
    "this engine shares a GPU between one stream of kernels and one of collectives, which only kernels wait for; "
    "use engine.run"
)


def run(program: Program) -> Timeline:
    """Simulate `program` from time zero; as `ladder_sim.des.engine.run`."""
    return Timeline.of(program, scan(program))


def scan(program: Program) -> TaskTimes:
    """Simulate a program whose durations, leads or memory demands may be arrays of one value per configuration.

    Raises
    ------
    DeadlockError
        Tasks wait for each other.
    ValueError
        The program shares a GPU in a way that this engine does not support.
    """
    outline, costs, device = program.outline, program.costs, program.device or Device(sms=1)
    streams, groups, members, rows = outline.streams, outline.groups, outline.members, outline.rows
    varies, compute, comm = _streams(program)
    times: TaskTimes = ([0.0] * len(streams), [0.0] * len(streams), [0.0] * len(streams))
    readies_s, starts_s, ends_s = times
    # how much later than the end of a task of each kind those of other streams notice it
    wakes_s, kinds = [cost.wake_s for cost in costs], outline.kinds
    # end of each stream's last task
    fronts_s: list[Number] = [0.0] * len(program.streams)

    # of plain numbers, with Python's own functions, which are faster; or of arrays
    latest: Callable[..., Any] = maximum if varies else max
    queue: Any = (VectorQueue if varies else SingleQueue)(device, times)
    is_open = queue.open
    for index in evaluation_order(program, compute, comm):
        stream, kind, awaited = rows[index]
        duration_s, lead_s, _, _ = cost = costs[kind]
        if stream == comm:
            ready_s: Any = 0.0
            for before in awaited:
                ready_s = latest(ready_s, ends_s[before] + wakes_s[kinds[before]])
            queue.issue(index, cost, ready_s)
            continue
        # tasks before it on its stream have ended at front_s
        front_s = ready_s = fronts_s[stream]
        for before in awaited:
            if before in is_open:
                if stream != compute:
                    raise ValueError(CANNOT_SHARE)
                queue.close_through(before, front_s)
            ready_s = latest(ready_s, ends_s[before] + wakes_s[kinds[before]])
        readies_s[index] = ready_s
        if members and groups[index] != NO_GROUP:
            # members of a group are next to each other in the order, after all that any of them waits for
            own = members[groups[index]]
            if index != own[-1]:
                continue
            start_s: Any = 0.0
            for member in own:
                start_s = latest(start_s, readies_s[member] + costs[kinds[member]].lead_s)
            for member in own:
                starts_s[member] = start_s
                ends_s[member] = fronts_s[streams[member]] = start_s + costs[kinds[member]].duration_s
            continue
        starts_s[index] = start_s = ready_s + lead_s
        shares = is_open and stream == compute
        end_s = queue.run_next_to(cost, front_s, start_s) if shares else start_s + duration_s
        ends_s[index] = fronts_s[stream] = end_s
    if is_open:
        queue.close_through(next(reversed(is_open)), fronts_s[compute])
    return times


def _streams(program: Program) -> tuple[bool, int, int]:
    """Whether a number is an array; the compute stream and the communication stream, -1 where nothing is shared."""
    varies = np.ndarray in {type(number) for cost in program.costs for number in (*cost[:2], cost.wake_s)}
    if program.device is None:
        return varies, -1, -1
    comm: set[int] = set()
    compute: set[int] = set()
    known = program.device.traits
    for stream, cost in zip(program.outline.kind_streams, program.costs, strict=True):
        traits = known.get(cost.demand) or program.device.traits_of(cost.demand)
        varies = varies or traits.varies
        if traits.uses_shared:
            (comm if traits.is_collective else compute).add(stream)
    ranks = [program.streams[stream].rank for stream in comm | compute]
    if len(set(ranks)) == len(ranks):
        return varies, -1, -1
    several_ranks = len(set(ranks)) > 1 or any(len(members) > 1 for members in program.outline.members.values())
    if several_ranks or len(comm) > 1 or len(compute) > 1 or comm & compute:
        raise ValueError(CANNOT_SHARE)
    return varies, min(compute), min(comm)


def evaluation_order(program: Program, compute: int, comm: int) -> Sequence[int]:
    """Task indices in an order in which dependencies come first, and collectives as early as possible.

    Members of a collective group are adjacent. A program that was issued in such an order keeps it. `compute` and
    `comm` are the streams of kernels and of collectives that share a GPU; -1 where nothing is shared.

    Raises
    ------
    DeadlockError
        There is no such order.
    """
    # the same for any durations: a prediction asks several times for each of few outlines
    known = program.outline.in_order
    if (compute, comm) not in known:
        known[compute, comm] = _issued_in_order(program.outline, compute, comm)
    return range(len(program.tasks)) if known[compute, comm] else _topological(program, compute, comm)


def _issued_in_order(outline: Outline, compute: int, comm: int) -> bool:
    if outline.members:
        return False
    # the last kernel issued so far, and the last that the collectives so far wait for, one behind the other
    kernel = waited = -1
    for index, (stream, after) in enumerate(zip(outline.streams, outline.after, strict=True)):
        if after and max(after) >= index:
            return False
        if stream == comm:
            # it may overlap a kernel that it does not wait for, so it must come before that kernel
            waited = max(waited, *(before for before in after if outline.streams[before] == compute), -1)
            if waited < kernel:
                return False
        elif stream == compute:
            kernel = index
    return True


def _topological(program: Program, compute: int, comm: int) -> list[int]:
    # programs in order need none of it
    import networkx as nx

    unit_of = [task.group if task.group != NO_GROUP else -2 - index for index, task in enumerate(program.tasks)]
    members: dict[int, list[int]] = {}
    for index, unit in enumerate(unit_of):
        members.setdefault(unit, []).append(index)
    units: nx.DiGraph[int] = nx.DiGraph()
    units.add_nodes_from(members)
    units.add_edges_from((unit_of[before], unit_of[after]) for before, after in program.precedence().edges)

    def early(unit: int) -> tuple[bool, bool, int]:
        """Collectives first, then tasks that share nothing, kernels last."""
        first = members[unit][0]
        stream = program.tasks[first].stream
        return (stream != comm, stream == compute, first)

    try:
        return [index for unit in nx.lexicographical_topological_sort(units, key=early) for index in members[unit]]
    except nx.NetworkXUnfeasible:
        raise program.explain_deadlock(range(len(program.tasks))) from None
