"""What tasks of one GPU do to each other: rates by formula, and both engines against the laws of sharing."""

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim.des import engine, scan
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.des.shared import NOTHING, Demand, Device
from ladder_sim.des.timeline import Timeline
from tests.support.strategies import COLLECTIVES, ELASTIC, KERNELS, SECONDS, SMS, TILED, sharing_programs

RTOL = 1e-9
DEVICE = Device(sms=SMS)
STREAMS = (Stream(name="compute"), Stream(name="comm"))
Run = Callable[[Program], Timeline]
both_engines = pytest.mark.parametrize("run", [engine.run, scan.run], ids=["des", "fast"])
DEMANDS = st.one_of(KERNELS, COLLECTIVES)
# outlasts every kernel here
LONG_S = 1e3


def share(
    kernel: Demand, collective: Demand, *, kernel_s: float = 1.0, collective_s: float = LONG_S, delay_s: float = 0.0
) -> Program:
    """A kernel at 0, and a collective that is due `delay_s` later."""
    tasks = (
        Task(name="kernel", stream=0, duration_s=kernel_s, demand=kernel),
        Task(name="collective", stream=1, duration_s=collective_s, lead_s=delay_s, demand=collective),
    )
    return Program(tasks=tasks, streams=STREAMS, device=DEVICE)


def kernel_s(run: Run, kernel: Demand, held_sms: int) -> float:
    """Time of a kernel of one second while a collective only holds SMs."""
    return float(run(share(kernel, Demand(held_sms=held_sms))).end_s[0])


# rates


@given(DEMANDS)
def test_a_task_alone_runs_at_full_rate(own: Demand) -> None:
    assert DEVICE.rate(own, []) == 1.0
    assert DEVICE.rate(own, [NOTHING]) == 1.0
    assert DEVICE.rate(NOTHING, [own]) == 1.0


@given(DEMANDS, st.lists(DEMANDS, max_size=4), DEMANDS)
def test_rates_are_fractions_that_company_never_raises(own: Demand, others: list[Demand], another: Demand) -> None:
    rate = DEVICE.rate(own, others)
    assert 0.0 < rate <= 1.0
    assert 0.0 < DEVICE.rate(own, [*others, another]) <= rate


@given(st.lists(DEMANDS, min_size=1, max_size=5))
def test_no_more_than_all_bandwidth_is_handed_out(demands: list[Demand]) -> None:
    rates = [DEVICE.rate(own, demands[:i] + demands[i + 1 :]) for i, own in enumerate(demands)]
    for resource in ("memory", "link"):
        assert sum(getattr(own, resource) * rate for own, rate in zip(demands, rates, strict=True)) <= 1.0 + RTOL


@given(st.integers(1, 50), st.integers(1, SMS - 1))
def test_a_dense_kernel_loses_about_its_share_of_the_sms(waves: int, held_sms: int) -> None:
    rate = DEVICE.rate(Demand(tiles=waves * SMS), [Demand(held_sms=held_sms)])
    left = (SMS - held_sms) / SMS
    # the last wave may be a partial one
    assert waves / (waves / left + 1.0) <= rate <= left * (1 + RTOL)


# both engines


@both_engines
@given(program=sharing_programs())
def test_work_is_conserved(run: Run, program: Program) -> None:
    """Integrated over its run, every task's rate gives its duration, and no rate leaves (0, 1]."""
    assert_conserved(program, run(program))


@given(st.data())
def test_work_is_conserved_on_any_number_of_streams(data: st.DataObject) -> None:
    streams = data.draw(st.integers(1, 4))
    tasks: list[Task] = []
    for index in range(data.draw(st.integers(1, 12))):
        earlier = st.sets(st.integers(0, index - 1), max_size=2) if index else st.just(set())
        stream, after = data.draw(st.integers(0, streams - 1)), tuple(sorted(data.draw(earlier)))
        demand = data.draw(DEMANDS)
        tasks.append(Task(name=f"{index}", stream=stream, duration_s=data.draw(SECONDS), after=after, demand=demand))
    program = Program(tasks=tuple(tasks), streams=tuple(Stream(name=f"{n}") for n in range(streams)), device=DEVICE)
    assert_conserved(program, engine.run(program))


def assert_conserved(program: Program, timeline: Timeline) -> None:
    start, end = timeline.start_s.tolist(), timeline.end_s.tolist()
    moments = sorted({*start, *end})
    work_s = [0.0] * len(program.tasks)
    for begin, stop in itertools.pairwise(moments):
        running = [i for i in range(len(start)) if start[i] <= begin and stop <= end[i]]
        for own in running:
            rate = DEVICE.rate(program.tasks[own].demand, [program.tasks[i].demand for i in running if i != own])
            assert 0.0 < rate <= 1.0
            work_s[own] += float(rate) * (stop - begin)
    expected = [float(task.duration_s) for task in program.tasks]
    assert work_s == pytest.approx(expected, rel=RTOL, abs=RTOL * max(1.0, timeline.makespan_s))


@both_engines
@given(tasks=st.lists(st.tuples(DEMANDS, SECONDS, SECONDS), min_size=1, max_size=8))
def test_a_task_alone_is_never_slowed(run: Run, tasks: list[tuple[Demand, float, float]]) -> None:
    """Whatever it asks for: one after the other, every task takes its own time."""
    chain = tuple(
        Task(
            name=f"{index}",
            stream=1 if demand.held_sms else 0,
            duration_s=duration_s,
            lead_s=lead_s,
            after=(index - 1,) if index else (),
            demand=demand,
        )
        for index, (demand, duration_s, lead_s) in enumerate(tasks)
    )
    timeline = run(Program(tasks=chain, streams=STREAMS, device=DEVICE))
    assert timeline.end_s.tolist() == pytest.approx(
        list(itertools.accumulate(lead_s + duration_s for _, duration_s, lead_s in tasks)), rel=RTOL
    )


@both_engines
@given(duration_s=st.floats(1e-6, 250.0), held_sms=st.integers(1, SMS // 4))
def test_two_memory_bound_tasks_take_twice_as_long(run: Run, duration_s: float, held_sms: int) -> None:
    """All bytes go through the memory; while both run, each SM that asks has the same bandwidth."""
    collective = Demand(held_sms=held_sms, memory=1.0)
    program = share(Demand(spare=0.25, memory=1.0), collective, kernel_s=duration_s, collective_s=duration_s)
    first_s = duration_s * (SMS + held_sms) / SMS
    assert run(program).end_s.tolist() == pytest.approx([first_s, 2 * duration_s], rel=RTOL)


@given(st.integers(2, 7))
def test_identical_memory_bound_kernels_on_many_streams(count: int) -> None:
    tasks = tuple(Task(name=f"{n}", stream=n, duration_s=3.0, demand=Demand(memory=1.0)) for n in range(count))
    program = Program(tasks=tasks, streams=tuple(Stream(name=f"{n}") for n in range(count)), device=DEVICE)
    assert engine.run(program).end_s.tolist() == pytest.approx([3.0 * count] * count, rel=RTOL)


def test_gpus_share_nothing_with_each_other() -> None:
    tasks = tuple(Task(name=f"{n}", stream=n, duration_s=3.0, demand=Demand(memory=1.0)) for n in range(3))
    program = Program(tasks=tasks, streams=tuple(Stream(name="compute", rank=n) for n in range(3)), device=DEVICE)
    for run in (engine.run, scan.run):
        assert run(program).end_s.tolist() == [3.0, 3.0, 3.0]


@both_engines
def test_half_the_time_together(run: Run) -> None:
    """A kernel that meets a collective halfway: rates by hand."""
    program = share(Demand(memory=0.8), Demand(held_sms=1, memory=0.4), kernel_s=6.0, collective_s=10.0, delay_s=3.0)
    timeline = run(program)
    # the kernel needs less than its SMs' part and loses nothing; the collective has half of what it needs for 3 s
    assert timeline.start_s.tolist() == [0.0, 3.0]
    assert timeline.end_s.tolist() == pytest.approx([6.0, 14.5], rel=RTOL)


@both_engines
@given(
    kernel=KERNELS,
    collective=COLLECTIVES,
    times=st.tuples(SECONDS, SECONDS, SECONDS),
    more=st.floats(0.0, 1.0),
    of_kernel=st.booleans(),
)
def test_more_memory_demand_never_ends_anything_earlier(
    run: Run,
    kernel: Demand,
    collective: Demand,
    times: tuple[float, float, float],
    more: float,
    of_kernel: bool,
) -> None:
    before = run(timed(kernel, collective, times))
    if of_kernel:
        kernel = changed(kernel, memory=min(1.0, float(kernel.memory) + more))
    else:
        collective = changed(collective, memory=min(1.0, float(collective.memory) + more))
    after = run(timed(kernel, collective, times))
    assert (after.end_s >= before.end_s * (1 - RTOL)).all()


@both_engines
@given(kernel=KERNELS, collective=COLLECTIVES, times=st.tuples(SECONDS, SECONDS), more=st.integers(1, SMS))
def test_more_held_sms_never_end_anything_earlier(
    run: Run, kernel: Demand, collective: Demand, times: tuple[float, float], more: int
) -> None:
    """Of tasks that start together: a later collective may have to wait for a wave, and that spares the kernel.

    A collective that moves bytes gets more of a busy memory by more SMs; the kernel ends no earlier for it.
    """
    before = run(timed(kernel, collective, (*times, 0.0)))
    after = run(timed(kernel, changed(collective, held_sms=collective.held_sms + more), (*times, 0.0)))
    ends = after.end_s >= before.end_s * (1 - RTOL)
    assert ends[0]
    assert ends[1] or collective.memory > 0.0


@both_engines
@given(kernel=KERNELS, collective=COLLECTIVES, times=st.tuples(SECONDS, SECONDS), shorter=st.floats(0.01, 1.0))
def test_a_faster_collective_takes_no_more_from_a_kernel(
    run: Run, kernel: Demand, collective: Demand, times: tuple[float, float], shorter: float
) -> None:
    """It moves as many bytes in less time: what it asks for rises, what it gets of a busy memory is its SMs' part.

    A slow one that outlasts the kernel leaves some of its bytes for later; then both end no later together.
    """
    assume(float(collective.memory) > 0.0)
    faster = changed(collective, memory=min(1.0, float(collective.memory) / shorter))
    kernel_s, collective_s = times
    before, after = (
        run(share(kernel, each, kernel_s=kernel_s, collective_s=collective_s * collective.memory / each.memory))
        for each in (collective, faster)
    )
    assert after.end_s.max() <= before.end_s.max() * (1 + RTOL)
    if before.end_s[1] <= before.end_s[0]:
        assert after.end_s[0] <= before.end_s[0] * (1 + RTOL)


def timed(kernel: Demand, collective: Demand, times: tuple[float, float, float]) -> Program:
    return share(kernel, collective, kernel_s=times[0], collective_s=times[1], delay_s=times[2])


def changed(demand: Demand, **fields: float) -> Demand:
    return dataclasses.replace(demand, **fields)


@both_engines
@given(waves=st.integers(1, 4), missing=st.integers(0, 9))
def test_a_wave_limited_kernel_needs_another_wave(run: Run, waves: int, missing: int) -> None:
    """Tiles just under a multiple of the SMs: no room for a collective that holds 10."""
    kernel = Demand(tiles=waves * SMS - missing)
    assert kernel_s(run, kernel, 10) == pytest.approx(1.0 + 1.0 / waves, rel=RTOL)


def test_a_collective_waits_for_busy_memory() -> None:
    """It asks for none of the bandwidth itself, but its steps take longer."""
    collective = Demand(held_sms=4, slowdown=0.5)
    assert DEVICE.rate(collective, []) == 1.0
    assert DEVICE.rate(collective, [Demand(tiles=100)]) == 1.0
    assert DEVICE.rate(collective, [Demand(memory=0.6)]) == pytest.approx(1 / 1.3)
    # more than all of the memory cannot be used
    assert DEVICE.rate(collective, [Demand(memory=0.6), Demand(memory=0.6)]) == pytest.approx(1 / 1.5)


@both_engines
def test_a_kernel_with_room_in_its_last_wave_loses_nothing(run: Run) -> None:
    for tiles in (1, 64, 112, 122, 244):
        assert kernel_s(run, Demand(tiles=tiles), 10) == 1.0, tiles


@both_engines
@given(held_sms=st.integers(1, SMS), spare=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_an_elastic_kernel_loses_nothing_until_its_spare_sms_are_used_up(run: Run, held_sms: int, spare: float) -> None:
    seconds = kernel_s(run, Demand(spare=spare), held_sms)
    if held_sms <= spare * SMS and held_sms < SMS:
        assert seconds == 1.0
    else:
        assert seconds == pytest.approx(max(1.0, (1.0 - spare) * SMS / max(1, SMS - held_sms)), rel=RTOL)


@both_engines
@given(
    tiles=st.integers(1, 6 * SMS),
    held_sms=st.integers(1, 40),
    duration_s=st.floats(0.1, 10.0),
    share_done=st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0.0, 1.2)),
)
def test_a_collective_without_free_sms_waits_to_the_end_of_the_wave(
    run: Run, tiles: int, held_sms: int, duration_s: float, share_done: float
) -> None:
    waves, due_s = math.ceil(tiles / SMS), share_done * duration_s
    # what lies on a wave's end up to rounding is tested below
    position = share_done * waves
    assume(position in (0.0, 1.0) or abs(position - round(position)) > 1e-6)
    program = share(
        Demand(tiles=tiles), Demand(held_sms=held_sms), kernel_s=duration_s, collective_s=1.0, delay_s=due_s
    )
    start_s = run(program).start_s[1]
    if share_done >= 1.0 or min(tiles, SMS) + held_sms <= SMS:
        assert start_s == due_s
    else:
        assert start_s == pytest.approx(math.ceil(position) * duration_s / waves, rel=RTOL)


@both_engines
def test_a_collective_that_is_due_between_two_waves_does_not_wait(run: Run) -> None:
    for waves, wave in [(count, wave) for count in (1, 3, 7, 10) for wave in range(count + 1)]:
        due_s = wave * (0.7 / waves)
        timeline = run(share(Demand(tiles=waves * SMS), Demand(held_sms=20), kernel_s=0.7, delay_s=due_s))
        assert timeline.start_s[1] == pytest.approx(due_s, rel=RTOL, abs=RTOL)


@both_engines
def test_an_elastic_kernel_lets_a_collective_in_at_once(run: Run) -> None:
    timeline = run(share(Demand(spare=0.0, memory=1.0), Demand(held_sms=40), delay_s=0.3))
    assert timeline.start_s[1] == 0.3


@both_engines
def test_a_collective_that_waits_for_a_wave_holds_nothing_yet(run: Run) -> None:
    """Two waves of 1 s, no free SM: due at 0.5, the collective starts at 1, and only the second wave is slowed."""
    timeline = run(share(Demand(tiles=2 * SMS), Demand(held_sms=66), kernel_s=2.0, collective_s=1e3, delay_s=0.5))
    assert timeline.start_s[1] == pytest.approx(1.0, rel=RTOL)
    # four waves instead of two from there on: the second second takes two
    assert timeline.end_s[0] == pytest.approx(3.0, rel=RTOL)


def test_a_collective_that_waits_for_its_peers_holds_its_sms() -> None:
    """The kernel of a rank that came first spins and slows down the kernel next to it."""
    streams = tuple(Stream(name=name, rank=rank) for rank in (0, 1) for name in ("compute", "comm"))
    waits = Demand(held_sms=66)
    tasks = (
        Task(name="kernel", stream=0, duration_s=1.0, demand=Demand(tiles=4 * SMS)),
        Task(name="late", stream=2, duration_s=10.0),
        Task(name="reduce0", stream=1, duration_s=1.0, demand=waits, group=1),
        Task(name="reduce1", stream=3, duration_s=1.0, after=(1,), demand=waits, group=1),
    )
    timeline = engine.run(Program(tasks=tasks, streams=streams, device=DEVICE))
    assert timeline.end_s.tolist() == pytest.approx([2.0, 10.0, 11.0, 11.0], rel=RTOL)


@given(st.one_of(TILED, ELASTIC), COLLECTIVES)
def test_only_tiled_kernels_make_collectives_wait(kernel: Demand, collective: Demand) -> None:
    must = DEVICE.must_drain(collective, kernel)
    assert must == (kernel.tiles > 0 and SMS - min(kernel.tiles, SMS) < collective.held_sms)


@both_engines
def test_without_a_device_nothing_is_shared(run: Run) -> None:
    program = share(Demand(tiles=SMS, memory=1.0), Demand(held_sms=40, memory=1.0), collective_s=1.0)
    free = Program(tasks=program.tasks, streams=program.streams)
    assert run(free).end_s.tolist() == [1.0, 1.0]


def test_runs_are_repeatable() -> None:
    program = share(Demand(tiles=200, memory=0.7), Demand(held_sms=20, memory=0.6), delay_s=0.2)
    for run in (engine.run, scan.run):
        assert run(program).end_s.tolist() == run(program).end_s.tolist()
