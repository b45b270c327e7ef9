"""The fast engine against the event-driven one, task by task."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ladder_sim.des import engine, scan
from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.shared import NOTHING, Demand, Device
from ladder_sim.errors import DeadlockError
from tests.support.strategies import COLLECTIVES, DELAYS, KERNELS, SECONDS, SHARES, SMS, programs, sharing_programs

RTOL = 1e-9
DEVICE = Device(sms=SMS)
PAIR = (Stream(name="compute"), Stream(name="comm"))


def assert_same_times(program: Program) -> None:
    actual, expected = scan.run(program), engine.run(program)
    for field in ("ready_s", "start_s", "end_s"):
        np.testing.assert_allclose(
            getattr(actual, field), getattr(expected, field), rtol=RTOL, atol=RTOL * expected.makespan_s, err_msg=field
        )


@settings(max_examples=300)
@given(programs(maximum_units=20))
def test_same_times_where_nothing_is_shared(program: Program) -> None:
    assert_same_times(program)


@given(programs(), st.data())
def test_same_times_where_tasks_of_a_gpu_ask_for_nothing(program: Program, data: st.DataObject) -> None:
    """Several ranks, each with one stream that asks for anything."""
    own = {stream.rank: index for index, stream in enumerate(program.streams)}
    chosen = set(own.values())
    tasks = tuple(task._replace(demand=data.draw(KERNELS)) if task.stream in chosen else task for task in program.tasks)
    assert_same_times(replace(program, tasks=tasks, device=DEVICE))


@settings(max_examples=400)
@given(sharing_programs())
def test_same_times_where_kernels_and_collectives_share_a_gpu(program: Program) -> None:
    assert_same_times(program)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(KERNELS, SECONDS), min_size=1, max_size=6),
    st.lists(st.tuples(COLLECTIVES, SECONDS, SECONDS), min_size=2, max_size=8),
)
def test_several_collectives_in_a_row(
    kernels: list[tuple[Demand, float]], collectives: list[tuple[Demand, float, float]]
) -> None:
    """They queue while kernels run that depend on none of them."""
    tasks = [
        Task(name=f"kernel{n}", stream=0, duration_s=duration_s, demand=demand)
        for n, (demand, duration_s) in enumerate(kernels)
    ]
    tasks += [
        Task(name=f"collective{n}", stream=1, duration_s=duration_s, lead_s=lead_s, demand=demand)
        for n, (demand, duration_s, lead_s) in enumerate(collectives)
    ]
    assert_same_times(Program(tasks=tuple(tasks), streams=PAIR, device=DEVICE))


@given(st.permutations(range(6)), st.lists(KERNELS, min_size=3, max_size=3), st.lists(COLLECTIVES, min_size=3))
def test_ties(order: list[int], kernels: list[Demand], collectives: list[Demand]) -> None:
    """Everything starts and ends on whole seconds, in whatever order it was issued."""
    both = [Task(name=f"kernel{n}", stream=0, duration_s=1.0, demand=demand) for n, demand in enumerate(kernels)]
    both += [Task(name=f"c{n}", stream=1, duration_s=1.0, demand=demand) for n, demand in enumerate(collectives[:3])]
    assert_same_times(Program(tasks=tuple(both[i] for i in order), streams=PAIR, device=DEVICE))


# many configurations at once

# of a demand, those that may differ between configurations
NUMBERS = ("held_sms", "lost", "memory", "waits", "delay")


def all_at_once(configurations: list[Program]) -> NDArray[np.float64]:
    """Scan programs that differ in durations, leads and demands only, as one."""
    columns = zip(*(program.tasks for program in configurations), strict=True)
    tasks = []
    for column in columns:
        first = column[0]
        demand = first.demand
        if demand is not NOTHING:
            numbers = {name: np.array([float(getattr(task.demand, name)) for task in column]) for name in NUMBERS}
            demand = replace(demand, **numbers)
        tasks.append(
            first._replace(
                duration_s=np.array([float(task.duration_s) for task in column]),
                lead_s=np.array([float(task.lead_s) for task in column]),
                demand=demand,
            )
        )
    return scanned(replace(configurations[0], tasks=tuple(tasks)))


def scanned(program: Program) -> NDArray[np.float64]:
    """Times of shape (3, tasks, configurations)."""
    times = scan.scan(program)
    flat = np.broadcast_arrays(*(np.atleast_1d(time) for column in times for time in column))
    return np.stack(flat).reshape(3, len(program.tasks), -1)


def one_by_one(configurations: list[Program]) -> NDArray[np.float64]:
    runs = [engine.run(program) for program in configurations]
    return np.stack([[run.ready_s, run.start_s, run.end_s] for run in runs], axis=-1)


def redrawn(program: Program, data: st.DataObject) -> Program:
    """Other durations, leads and demands."""
    tasks = []
    for task in program.tasks:
        demand = task.demand
        if demand.is_collective:
            held_sms, memory, waits = data.draw(st.tuples(st.integers(1, 40), SHARES, SHARES))
            demand = replace(demand, held_sms=held_sms, memory=memory, waits=waits)
        elif demand is not NOTHING:
            lost, memory, delay = data.draw(st.tuples(SHARES, SHARES, DELAYS))
            demand = replace(demand, lost=lost, memory=memory, delay=delay)
        lead_s = data.draw(SECONDS) if task.lead_s else 0.0
        tasks.append(task._replace(duration_s=data.draw(SECONDS), lead_s=lead_s, demand=demand))
    return replace(program, tasks=tuple(tasks))


@settings(max_examples=100)
@given(sharing_programs(maximum_tasks=10), st.integers(1, 5), st.data())
def test_many_configurations_are_each_as_alone(program: Program, others: int, data: st.DataObject) -> None:
    configurations = [program, *(redrawn(program, data) for _ in range(others))]
    expected = one_by_one(configurations)
    actual = all_at_once(configurations)
    assert actual.shape == (3, len(program.tasks), others + 1)
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=RTOL * expected.max())


@given(programs(maximum_units=10), st.integers(1, 5), st.data())
def test_many_configurations_on_several_ranks(program: Program, others: int, data: st.DataObject) -> None:
    configurations = [program, *(redrawn(program, data) for _ in range(others))]
    if not program.tasks:
        return
    expected = one_by_one(configurations)
    np.testing.assert_allclose(all_at_once(configurations), expected, rtol=RTOL, atol=RTOL * expected.max())


def test_thousands_of_configurations() -> None:
    """A slower collective delays what depends on it, configuration by configuration."""
    durations_s = np.linspace(0.0, 5.0, 4001)
    tasks = (
        Task(name="a", stream=0, duration_s=1.0),
        Task(name="reduce", stream=1, duration_s=durations_s, after=(0,), demand=Demand(held_sms=8)),
        Task(name="kernel", stream=0, duration_s=2.0, after=(0,)),
        Task(name="b", stream=0, duration_s=1.0, after=(1,)),
    )
    times = scanned(Program(tasks=tasks, streams=PAIR, device=DEVICE))
    np.testing.assert_allclose(times[2, 3], 2.0 + np.maximum(2.0, durations_s), rtol=RTOL)


def test_a_collective_is_due_in_some_configurations_only() -> None:
    """In the others the one before it is still running, so that its start is unknown when its turn comes."""
    half = Demand(held_sms=SMS / 2, waits=1.0)
    tasks = (
        Task(name="first", stream=1, duration_s=np.array([0.2, 5.0]), demand=half),
        Task(name="second", stream=1, duration_s=1.0, demand=half),
        Task(name="kernel", stream=0, duration_s=1.0, demand=Demand(lost=1.0, delay=1.0)),
    )
    times = scanned(Program(tasks=tasks, streams=PAIR, device=DEVICE))
    # while the kernel runs, for 2 s, it and the collectives are half as fast
    np.testing.assert_allclose(times[1, 1], [2 * 0.2, 2.0 + 5.0 - 1.0], rtol=RTOL)
    np.testing.assert_allclose(times[2, 1], [2.0 + 1.0 - (2.0 - 0.4) / 2, 7.0], rtol=RTOL)


def test_arrays_of_zeros_are_arrays() -> None:
    """A kernel that asks for nothing in any configuration runs next to a collective like any other."""
    tasks = (
        Task(name="reduce", stream=1, duration_s=5.0, demand=Demand(held_sms=1)),
        Task(name="norm", stream=0, duration_s=1.0, demand=Demand(memory=np.zeros(2), delay=np.zeros(2))),
        Task(name="gemm", stream=0, duration_s=1.0, demand=Demand(memory=1.0)),
    )
    times = scanned(Program(tasks=tasks, streams=PAIR, device=DEVICE))
    np.testing.assert_allclose(times[2, 1], [1.0, 1.0], rtol=RTOL)


# limits


def test_an_empty_program() -> None:
    assert scan.run(Program(tasks=(), streams=PAIR)).makespan_s == 0.0


@given(programs(), st.data())
def test_both_engines_report_every_cycle(program: Program, data: st.DataObject) -> None:
    pairs = sorted(itertools.combinations(range(len(program.tasks)), 2))
    if not pairs:
        return
    first, last = data.draw(st.sampled_from(pairs))
    tasks = list(program.tasks)
    tasks[first] = tasks[first]._replace(after=(*tasks[first].after, last))
    looped = replace(program, tasks=tuple(tasks))
    if has_cycle(looped):
        for run in (engine.run, scan.run):
            with pytest.raises(DeadlockError, match="wait for each other"):
                run(looped)
    else:
        assert_same_times(looped)


def has_cycle(program: Program) -> bool:
    """Whether tasks wait for each other; a collective waits for what any of its members waits for."""
    unit = [task.group if task.group != NO_GROUP else -2 - index for index, task in enumerate(program.tasks)]
    waits = program.precedence()
    return not nx.is_directed_acyclic_graph(nx.DiGraph((unit[before], unit[after]) for before, after in waits.edges))


def collective(stream: int, **fields: object) -> Task:
    return Task(name="collective", stream=stream, duration_s=1.0, demand=Demand(held_sms=8))._replace(**fields)


def kernel(stream: int, **fields: object) -> Task:
    return Task(name="kernel", stream=stream, duration_s=1.0, demand=Demand(memory=1.0))._replace(**fields)


UNFOLLOWED = {
    "collectives on two streams": (collective(0), collective(1)),
    "kernels on two streams": (kernel(0), kernel(1), collective(2)),
    "a collective of two ranks that share": (kernel(0), collective(1, group=1), collective(3, group=1)),
}


@pytest.mark.parametrize("tasks", UNFOLLOWED.values(), ids=UNFOLLOWED.keys())
def test_what_it_cannot_follow_it_refuses(tasks: tuple[Task, ...]) -> None:
    streams = tuple(Stream(name=f"{n}", rank=n // 3) for n in range(4))
    with pytest.raises(ValueError, match="one stream of kernels and one of collectives"):
        scan.run(Program(tasks=tasks, streams=streams, device=DEVICE))


THREE = (*PAIR, Stream(name="launch"))
FOLLOWED_OR_REFUSED = {
    "kernels on two streams, no collective": (kernel(0), kernel(1)),
    "kernels and collectives on one stream, nothing else": (kernel(0), collective(0), kernel(0)),
    "a stream that uses nothing and a collective that waits for nothing": (
        Task(name="host", stream=2, duration_s=10.0),
        collective(1),
        Task(name="after", stream=2, duration_s=1.0, after=(1,)),
    ),
    "a collective that waits for a third stream while a kernel runs": (
        kernel(0, duration_s=5.0),
        Task(name="launch", stream=2, duration_s=1.0),
        collective(1, after=(1,), demand=Demand(held_sms=8, memory=1.0)),
    ),
    "a third stream that waits for a collective before a kernel is issued": (
        collective(1, demand=Demand(held_sms=8, memory=1.0)),
        Task(name="host", stream=2, duration_s=1.0, after=(0,)),
        kernel(0),
    ),
}


@pytest.mark.parametrize("tasks", FOLLOWED_OR_REFUSED.values(), ids=FOLLOWED_OR_REFUSED.keys())
def test_never_silently_wrong(tasks: tuple[Task, ...]) -> None:
    assert_same_times_or_refused(Program(tasks=tasks, streams=THREE, device=DEVICE))


@settings(max_examples=300)
@given(sharing_programs(host=True))
def test_never_silently_wrong_beside_a_third_stream(program: Program) -> None:
    assert_same_times_or_refused(program)


def assert_same_times_or_refused(program: Program) -> None:
    try:
        scan.run(program)
    except ValueError:
        return
    assert_same_times(program)
