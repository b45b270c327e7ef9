"""The fast engine: one pass over a program in issue order, for one configuration or thousands at once.

A task starts when earlier tasks end, and their ends are known when its turn comes, so one pass gives every time
exactly. Only kernels that share a GPU with a collective need more: a collective stays open while later kernels are
issued, and is closed when a task waits for it (`comm_queue.py`). Where durations are arrays, every step is a numpy
operation over all configurations. These differ in numbers, not in structure.

The results equal those of `engine.run` up to rounding. Sharing is possible in programs of one rank with one compute
stream and one communication stream. Programs of several ranks must share nothing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ladder_sim.des.comm_queue import SingleQueue, VectorQueue
from ladder_sim.des.order import evaluation_order
from ladder_sim.des.program import NO_GROUP, Program
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
                start_s = latest(start_s, readies_s[member] + costs[rows[member].kind].lead_s)
            for member in own:
                starts_s[member] = start_s
                ends_s[member] = fronts_s[streams[member]] = start_s + costs[rows[member].kind].duration_s
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
