"""Interval algebra and critical paths of simulated runs."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.des.engine import run
from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.timeline import Spans, Timeline, length_s, overlap_s, subtract, union
from tests.support.strategies import programs

RTOL = 1e-9
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda s: (float(s[0]), float(s[0] + s[1]))))


def cells(spans: Spans) -> set[int]:
    """The unit intervals that the spans cover."""
    return {cell for start, end in spans for cell in range(int(start), int(end))}


@given(SPANS)
def test_union_covers_the_same_and_is_disjoint(spans: Spans) -> None:
    merged = union(spans)
    assert cells(merged) == cells(spans)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(merged))
    assert union(merged) == merged


@given(SPANS, SPANS)
def test_overlap_counts_shared_time_once(first: Spans, second: Spans) -> None:
    cover = union(second)
    assert sum(overlap_s(span, cover) for span in union(first)) == len(cells(first) & cells(second))


@given(SPANS, SPANS)
def test_subtraction_leaves_what_the_cover_does_not_share(first: Spans, second: Spans) -> None:
    spans, cover = [span for span in union(first) if span[0] < span[1]], union(second)
    rest = subtract(spans, cover)
    assert cells(rest) == cells(first) - cells(second)
    assert union(rest) == rest
    assert length_s(rest) == length_s(spans) - sum(overlap_s(span, cover) for span in spans)


@given(programs())
def test_busy_hidden_and_exposed(program: Program) -> None:
    timeline = run(program)
    streams = range(len(program.streams))
    for stream in streams:
        busy = timeline.busy([stream])
        work_s = math.fsum(task.duration_s for task in program.tasks if task.stream == stream)
        # one task at a time: a stream's busy time is its work
        assert math.isclose(sum(end - start for start, end in busy), work_s, rel_tol=RTOL, abs_tol=1e-9)
        others = timeline.busy(other for other in streams if other != stream)
        for index, task in enumerate(program.tasks):
            if task.stream == stream:
                span = (timeline.start_s[index], timeline.end_s[index])
                hidden_s = overlap_s(span, others)
                assert -1e-9 <= hidden_s <= task.duration_s + 1e-9
                assert math.isclose(overlap_s(span, busy), task.duration_s, rel_tol=RTOL, abs_tol=1e-9)
    everything = timeline.busy(streams)
    assert sum(end - start for start, end in everything) <= timeline.makespan_s * (1 + RTOL)


def gate(program: Program, timeline: Timeline, index: int) -> int:
    """The task whose arrival let `index` start: itself, or the last member of its collective."""
    group = program.tasks[index].group
    if group == NO_GROUP:
        return index
    members = program.outline.members[group]
    return max(members, key=lambda i: timeline.ready_s[i] + program.tasks[i].lead_s)


@given(programs())
def test_critical_path_is_a_chain_that_adds_up(program: Program) -> None:
    timeline = run(program)
    path = timeline.critical_path()
    if not program.tasks:
        assert path == []
        return
    waits = program.precedence()
    total_s = 0.0
    for position, index in enumerate(path):
        arrived = gate(program, timeline, index)
        if position:
            assert waits.has_edge(path[position - 1], arrived)
            assert timeline.end_s[path[position - 1]] == timeline.ready_s[arrived]
        else:
            assert timeline.ready_s[arrived] == 0.0
        total_s += program.tasks[arrived].lead_s + program.tasks[index].duration_s
    assert timeline.end_s[path[-1]] == timeline.makespan_s
    assert math.isclose(total_s, timeline.makespan_s, rel_tol=RTOL)


@given(programs())
def test_critical_path_spans_add_up_on_one_rank(program: Program) -> None:
    """What a step's breakdown sums: from ready to end along the path."""
    alone = Program(
        tasks=tuple(
            Task(name=t.name, stream=t.stream, duration_s=t.duration_s, after=t.after, lead_s=t.lead_s)
            for t in program.tasks
        ),
        streams=program.streams,
    )
    timeline = run(alone)
    path = timeline.critical_path()
    spans = np.asarray(timeline.end_s)[path] - np.asarray(timeline.ready_s)[path]
    assert math.isclose(float(spans.sum()), timeline.makespan_s, rel_tol=RTOL, abs_tol=1e-12)


def test_hidden_and_exposed_by_hand() -> None:
    tasks = (
        Task(name="a", stream=0, duration_s=2.0),
        Task(name="reduce", stream=1, duration_s=5.0, after=(0,)),
        Task(name="b", stream=0, duration_s=3.0),
        Task(name="c", stream=0, duration_s=1.0, after=(1,), lead_s=0.5),
    )
    timeline = run(Program(tasks=tasks, streams=(Stream(name="compute"), Stream(name="comm"))))
    compute = timeline.busy([0])
    assert compute == [(0.0, 5.0), (7.5, 8.5)]
    assert overlap_s((timeline.start_s[1], timeline.end_s[1]), compute) == 3.0
    assert timeline.critical_path() == [0, 1, 3]
    assert timeline.makespan_s == 8.5


def test_the_critical_path_leads_over_the_message_that_is_noticed_last() -> None:
    """The kernel before it ends later, but needs nobody to wake up."""
    tasks = (
        Task(name="first", stream=0, duration_s=1.0),
        Task(name="message", stream=1, duration_s=2.0, after=(0,), wake_s=3.0),
        Task(name="second", stream=0, duration_s=4.0),
        Task(name="third", stream=0, duration_s=1.0, after=(1,)),
    )
    timeline = run(Program(tasks=tasks, streams=(Stream(name="compute"), Stream(name="comm"))))
    assert timeline.ready_s.tolist() == [0.0, 1.0, 1.0, 6.0]
    assert timeline.critical_path() == [0, 1, 3]
