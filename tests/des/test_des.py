"""The simulator against graph theory: a program's end times are the longest paths of its precedence."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim.des.engine import run
from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.errors import DeadlockError
from tests.support.strategies import SECONDS, programs

RTOL = 1e-9
START = "start"


def longest_paths(program: Program) -> list[float]:
    """End of every task as networkx finds it: a node per joint start and per task's end, shortest path negated."""
    graph: nx.DiGraph = nx.DiGraph()
    previous: dict[int, int] = {}
    for index, task in enumerate(program.tasks):
        joint = ("group", task.group) if task.group != NO_GROUP else ("task", index)
        before = [*task.after, *([previous[task.stream]] if task.stream in previous else [])]
        previous[task.stream] = index
        for node in [START, *(("end", i) for i in before)]:
            # of two members' leads after one event the longer counts
            known = graph.get_edge_data(node, joint, {"weight": 0.0})["weight"]
            graph.add_edge(node, joint, weight=min(known, -task.lead_s))
        graph.add_edge(joint, ("end", index), weight=-task.duration_s)
    lengths = nx.single_source_bellman_ford_path_length(graph, START) if program.tasks else {}
    return [-lengths[("end", index)] for index in range(len(program.tasks))]


def changed(program: Program, index: int, **fields: object) -> Program:
    tasks = list(program.tasks)
    tasks[index] = tasks[index]._replace(**fields)
    return replace(program, tasks=tuple(tasks))


@given(programs())
def test_end_times_are_longest_paths(program: Program) -> None:
    np.testing.assert_allclose(run(program).end_s, longest_paths(program), rtol=RTOL)


@given(programs())
def test_makespan_is_at_least_any_streams_work(program: Program) -> None:
    timeline = run(program)
    for queue in program.queues():
        # a member of a collective pays its lead while it waits for the others, but never less than that
        work_s = sum(program.tasks[i].duration_s + program.tasks[i].lead_s for i in queue)
        assert timeline.makespan_s >= work_s * (1 - RTOL)


@given(programs())
def test_tasks_of_a_stream_run_in_issue_order_one_at_a_time(program: Program) -> None:
    timeline = run(program)
    for queue in program.queues():
        for before, after in itertools.pairwise(queue):
            assert timeline.ready_s[after] >= timeline.end_s[before]
    for index, task in enumerate(program.tasks):
        assert timeline.start_s[index] >= timeline.ready_s[index] + task.lead_s - RTOL * timeline.makespan_s
        for before in task.after:
            assert timeline.ready_s[index] >= timeline.end_s[before]


@given(programs())
def test_members_of_a_collective_start_together(program: Program) -> None:
    timeline = run(program)
    for members in program.outline.members.values():
        assert len({timeline.start_s[i] for i in members}) == 1


@given(programs(), st.floats(1e-6, 1e6))
def test_scaling_all_times_scales_the_makespan(program: Program, factor: float) -> None:
    tasks = tuple(t._replace(duration_s=t.duration_s * factor, lead_s=t.lead_s * factor) for t in program.tasks)
    scaled = run(replace(program, tasks=tasks))
    np.testing.assert_allclose(scaled.end_s, run(program).end_s * factor, rtol=RTOL)


@given(programs(), st.data())
def test_a_longer_task_never_shortens(program: Program, data: st.DataObject) -> None:
    assume(program.tasks)
    index = data.draw(st.integers(0, len(program.tasks) - 1))
    field = data.draw(st.sampled_from(["duration_s", "lead_s"]))
    longer = changed(program, index, **{field: getattr(program.tasks[index], field) + data.draw(SECONDS)})
    before, after = run(program), run(longer)
    assert (after.end_s >= before.end_s - RTOL * after.makespan_s).all()


@given(programs(), st.data())
def test_another_dependency_never_shortens(program: Program, data: st.DataObject) -> None:
    # the first member's predecessors come before all members
    later = [i for i, task in enumerate(program.tasks) if i and task.group == NO_GROUP]
    assume(later)
    index = data.draw(st.sampled_from(later))
    before = data.draw(st.integers(0, index - 1))
    waiting = changed(program, index, after=(*program.tasks[index].after, before))
    first, second = run(program), run(waiting)
    assert (second.end_s >= first.end_s - RTOL * second.makespan_s).all()


@given(programs())
def test_runs_are_repeatable(program: Program) -> None:
    first, second = run(program), run(program)
    np.testing.assert_array_equal(first.start_s, second.start_s)
    np.testing.assert_array_equal(first.end_s, second.end_s)


def test_nothing_takes_no_time() -> None:
    timeline = run(Program(tasks=(), streams=(Stream(name="compute"),)))
    assert timeline.makespan_s == 0.0
    assert timeline.critical_path() == []
    assert timeline.busy([0]) == []


def test_a_ready_task_does_not_overtake_a_blocked_one() -> None:
    """What simpy.Resource gets wrong."""
    slow = Task(name="slow", stream=0, duration_s=5.0)
    blocked = Task(name="blocked", stream=1, duration_s=1.0, after=(0,))
    ready = Task(name="ready", stream=1, duration_s=1.0)
    timeline = run(Program(tasks=(slow, blocked, ready), streams=(Stream(name="a"), Stream(name="b"))))
    assert timeline.start_s.tolist() == [0.0, 5.0, 6.0]


def test_a_collective_starts_when_its_last_rank_arrives() -> None:
    streams = tuple(Stream(name=name, rank=rank) for rank in (0, 1) for name in ("compute", "comm"))
    tasks = (
        Task(name="fast", stream=0, duration_s=1.0),
        Task(name="slow", stream=2, duration_s=4.0),
        Task(name="reduce0", stream=1, duration_s=2.0, after=(0,), lead_s=0.5, group=7),
        Task(name="reduce1", stream=3, duration_s=2.0, after=(1,), lead_s=0.5, group=7),
        Task(name="next", stream=0, duration_s=1.0, after=(2,)),
    )
    timeline = run(Program(tasks=tasks, streams=streams))
    assert timeline.start_s.tolist() == [0.0, 0.0, 4.5, 4.5, 6.5]
    assert timeline.makespan_s == 7.5


def named(*tasks: Task, ranks: int = 1) -> Program:
    streams = tuple(Stream(name=name, rank=rank) for rank in range(ranks) for name in ("compute", "comm"))
    return Program(tasks=tasks, streams=streams)


def test_deadlock_behind_itself() -> None:
    """A task waits for one that is queued behind it on its own stream."""
    program = named(
        Task(name="innocent", stream=1, duration_s=1.0),
        Task(name="early", stream=0, duration_s=1.0, after=(2,)),
        Task(name="late", stream=0, duration_s=1.0),
    )
    with pytest.raises(DeadlockError, match="deadlock") as caught:
        run(program)
    assert "early (rank 0 compute)" in caught.value.message
    assert "late (rank 0 compute)" in caught.value.message
    assert "innocent" not in caught.value.message
    assert caught.value.hint


def test_deadlock_on_itself() -> None:
    with pytest.raises(DeadlockError, match="selfish"):
        run(named(Task(name="selfish", stream=0, duration_s=1.0, after=(0,))))


def test_deadlock_across_streams() -> None:
    program = named(
        Task(name="a", stream=0, duration_s=1.0, after=(3,)),
        Task(name="b", stream=0, duration_s=1.0),
        Task(name="c", stream=1, duration_s=1.0, after=(1,)),
        Task(name="d", stream=1, duration_s=1.0),
        Task(name="victim", stream=1, duration_s=1.0),
    )
    with pytest.raises(DeadlockError) as caught:
        run(program)
    for name in "abcd":
        assert f"{name} (rank 0" in caught.value.message
    assert "victim" not in caught.value.message


def test_deadlock_of_collectives_in_opposite_order() -> None:
    program = named(
        Task(name="first0", stream=1, duration_s=1.0, group=1),
        Task(name="second0", stream=1, duration_s=1.0, group=2),
        Task(name="second1", stream=3, duration_s=1.0, group=2),
        Task(name="first1", stream=3, duration_s=1.0, group=1),
        ranks=2,
    )
    with pytest.raises(DeadlockError) as caught:
        run(program)
    # one member of each collective is enough to see the cycle
    assert "first" in caught.value.message
    assert "second" in caught.value.message
    assert "(rank 0 comm)" in caught.value.message or "(rank 1 comm)" in caught.value.message


def test_deadlock_of_a_collective_with_itself() -> None:
    """Two members on one stream can never start together."""
    program = named(
        Task(name="one", stream=1, duration_s=1.0, group=1), Task(name="two", stream=1, duration_s=1.0, group=1)
    )
    with pytest.raises(DeadlockError, match="one"):
        run(program)


@given(programs(), st.data())
def test_every_cycle_is_reported(program: Program, data: st.DataObject) -> None:
    """A dependency that closes a cycle stops the run, and the tasks named do form a cycle."""
    chain = nx.transitive_closure_dag(program.precedence())
    pairs = sorted(chain.edges)
    assume(pairs)
    first, last = data.draw(st.sampled_from(pairs))
    looped = changed(program, first, after=(*program.tasks[first].after, last))
    with pytest.raises(DeadlockError) as caught:
        run(looped)
    names = [part.split(" (")[0] for part in caught.value.message.rpartition("other: ")[2].split(" -> ")]
    assert names[0] == names[-1]
    by_name = {task.name: index for index, task in enumerate(program.tasks)}
    waits = looped.precedence()
    for members in looped.outline.members.values():
        before = {p for member in members for p in waits.predecessors(member)}
        waits.add_edges_from((p, member) for p in before for member in members)
    for before_name, after_name in itertools.pairwise(names):
        assert waits.has_edge(by_name[before_name], by_name[after_name])
