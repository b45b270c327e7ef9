"""What tasks of one GPU do to each other: rates by formula, and both engines against the laws of sharing."""

import dataclasses
import itertools
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim.des import engine, scan
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.des.shared import NOTHING, Demand, Device
from ladder_sim.des.timeline import Timeline
from tests.support.strategies import COLLECTIVES, DELAYS, KERNELS, SECONDS, SHARES, SMS, sharing_programs

RTOL = 1e-9
DEVICE = Device(sms=SMS)
STREAMS = (Stream(name="compute"), Stream(name="comm"))
Run = Callable[[Program], Timeline]
both_engines = pytest.mark.parametrize("run", [engine.run, scan.run], ids=["des", "fast"])
DEMANDS = st.one_of(KERNELS, COLLECTIVES)
# of a kernel, of a collective, and until the latter is due
TIMES = st.tuples(SECONDS, SECONDS, SECONDS)
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


# rates


@given(DEMANDS)
def test_a_task_alone_runs_at_full_rate(own: Demand) -> None:
    assert DEVICE.rate(own, []) == 1.0
    assert DEVICE.rate(own, [NOTHING]) == 1.0
    assert DEVICE.rate(NOTHING, [own]) == 1.0


@given(DEMANDS, st.lists(DEMANDS, max_size=4), DEMANDS)
def test_rates_are_fractions_that_company_never_raises(own: Demand, others: list[Demand], another: Demand) -> None:
    """Unless it delays a collective, which then asks for less memory."""
    rate = DEVICE.rate(own, others)
    assert 0.0 < rate <= 1.0
    assert 0.0 < DEVICE.rate(own, [*others, another]) <= 1.0
    assert DEVICE.rate(own, [*others, changed(another, delay=0.0)]) <= rate * (1 + RTOL)


@given(COLLECTIVES, st.lists(KERNELS, max_size=4), KERNELS)
def test_another_kernel_never_speeds_a_collective_up(own: Demand, kernels: list[Demand], another: Demand) -> None:
    assert DEVICE.rate(own, [*kernels, another]) <= DEVICE.rate(own, kernels) * (1 + RTOL)


@given(st.lists(DEMANDS, min_size=1, max_size=5))
def test_no_more_than_all_bandwidth_is_handed_out(demands: list[Demand]) -> None:
    rates = [DEVICE.rate(own, demands[:i] + demands[i + 1 :]) for i, own in enumerate(demands)]
    for resource in ("memory", "link"):
        assert sum(getattr(own, resource) * rate for own, rate in zip(demands, rates, strict=True)) <= 1.0 + RTOL


@given(KERNELS, st.lists(st.integers(0, SMS), min_size=1, max_size=3))
def test_a_kernel_loses_a_part_of_the_share_of_its_sms(kernel: Demand, held_sms: list[int]) -> None:
    """Exactly so much of its speed, down to the one SM on which it can run; what collectives hold adds up."""
    rate = DEVICE.rate(changed(kernel, memory=0.0), [Demand(held_sms=held) for held in held_sms])
    assert rate == pytest.approx(max(1.0, SMS - kernel.lost * sum(held_sms)) / SMS, rel=RTOL)


@given(SHARES, st.lists(KERNELS, min_size=1, max_size=3), st.integers(1, 40))
def test_kernels_delay_the_steps_of_a_collective(waits: float, kernels: list[Demand], held_sms: int) -> None:
    """Each of its steps takes so much longer; the rest of its time passes as alone, and others' SMs are no matter."""
    own = Demand(held_sms=held_sms, waits=waits)
    stretch = 1.0 + waits * sum(float(kernel.delay) for kernel in kernels)
    assert DEVICE.rate(own, kernels) == pytest.approx(1.0 / stretch, rel=RTOL)
    assert DEVICE.rate(own, [*kernels, Demand(held_sms=SMS)]) == pytest.approx(1.0 / stretch, rel=RTOL)


def test_a_delayed_collective_asks_for_less_memory() -> None:
    kernel = Demand(memory=0.9, delay=3.0)
    # a quarter of its traffic fits beside the kernel
    assert DEVICE.rate(kernel, [Demand(held_sms=40, memory=0.2, waits=1.0)]) == 1.0
    assert DEVICE.rate(kernel, [Demand(held_sms=40, memory=0.2)]) == pytest.approx(0.8 / 0.9)


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
    program = share(Demand(memory=1.0), collective, kernel_s=duration_s, collective_s=duration_s)
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
    times=TIMES,
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
@given(kernel=KERNELS, collective=COLLECTIVES, times=TIMES, more=st.integers(1, SMS))
def test_more_held_sms_never_end_anything_earlier(
    run: Run, kernel: Demand, collective: Demand, times: tuple[float, float, float], more: int
) -> None:
    """A collective that moves bytes gets more of a busy memory by more SMs; the kernel ends no earlier for it."""
    before = run(timed(kernel, collective, times))
    after = run(timed(kernel, changed(collective, held_sms=collective.held_sms + more), times))
    ends = after.end_s >= before.end_s * (1 - RTOL)
    assert ends[0]
    assert ends[1] or collective.memory > 0.0


@both_engines
@given(kernel=KERNELS, collective=COLLECTIVES, times=TIMES, more=DELAYS, of_kernel=st.booleans())
def test_more_delay_and_more_waits_never_end_anything_earlier(
    run: Run, kernel: Demand, collective: Demand, times: tuple[float, float, float], more: float, of_kernel: bool
) -> None:
    """A slower collective that moves bytes leaves a kernel more of a busy memory; it ends no earlier itself."""
    before = run(timed(kernel, collective, times))
    if of_kernel:
        kernel = changed(kernel, delay=kernel.delay + more)
    else:
        collective = changed(collective, waits=min(1.0, float(collective.waits) + more))
    after = run(timed(kernel, collective, times))
    ends = after.end_s >= before.end_s * (1 - RTOL)
    assert ends[1]
    assert ends[0] or collective.memory > 0.0


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
def test_a_delayed_collective_by_hand(run: Run) -> None:
    """It is due when a kernel of 6 s has run for 3 s, and waits half of its time for steps that take thrice as long."""
    program = share(Demand(memory=0.6, delay=2.0), Demand(held_sms=4, waits=0.5), kernel_s=6.0, delay_s=3.0)
    timeline = run(program)
    assert timeline.start_s.tolist() == [0.0, 3.0]
    # of the 3 s beside the kernel half was work
    assert timeline.end_s.tolist() == pytest.approx([6.0, 3.0 + LONG_S + 1.5], rel=RTOL)


@both_engines
@given(kernel=KERNELS, collective=COLLECTIVES, times=TIMES)
def test_nothing_waits_for_sms(run: Run, kernel: Demand, collective: Demand, times: tuple[float, float, float]) -> None:
    assert run(timed(kernel, collective, times)).start_s.tolist() == [0.0, times[2]]


@both_engines
@given(collective=COLLECTIVES, delay=DELAYS, times=TIMES)
def test_a_kernel_that_only_delays_is_seen(
    run: Run, collective: Demand, delay: float, times: tuple[float, float, float]
) -> None:
    """It loses nothing itself, and the collective loses what it waits longer while both run."""
    kernel_s, collective_s, due_s = times
    timeline = run(timed(Demand(delay=delay), collective, times))
    stretch = 1.0 + collective.waits * delay
    together_s = min(max(0.0, kernel_s - due_s), stretch * collective_s)
    lost_s = together_s * (1.0 - 1.0 / stretch)
    assert timeline.end_s.tolist() == pytest.approx([kernel_s, due_s + collective_s + lost_s], rel=RTOL, abs=RTOL)


def test_a_collective_that_waits_for_its_peers_holds_its_sms() -> None:
    """The kernel of a rank that came first spins and slows down the kernel next to it."""
    streams = tuple(Stream(name=name, rank=rank) for rank in (0, 1) for name in ("compute", "comm"))
    waits = Demand(held_sms=66)
    tasks = (
        Task(name="kernel", stream=0, duration_s=1.0, demand=Demand(lost=1.0)),
        Task(name="late", stream=2, duration_s=10.0),
        Task(name="reduce0", stream=1, duration_s=1.0, demand=waits, group=1),
        Task(name="reduce1", stream=3, duration_s=1.0, after=(1,), demand=waits, group=1),
    )
    timeline = engine.run(Program(tasks=tasks, streams=streams, device=DEVICE))
    assert timeline.end_s.tolist() == pytest.approx([2.0, 10.0, 11.0, 11.0], rel=RTOL)


@both_engines
def test_without_a_device_nothing_is_shared(run: Run) -> None:
    program = share(
        Demand(lost=1.0, memory=1.0, delay=3.5), Demand(held_sms=40, memory=1.0, waits=1.0), collective_s=1.0
    )
    free = Program(tasks=program.tasks, streams=program.streams)
    assert run(free).end_s.tolist() == [1.0, 1.0]


def test_runs_are_repeatable() -> None:
    program = share(Demand(lost=0.75, memory=0.7, delay=0.5), Demand(held_sms=20, memory=0.6, waits=0.3), delay_s=0.2)
    for run in (engine.run, scan.run):
        assert run(program).end_s.tolist() == run(program).end_s.tolist()


@given(KERNELS, COLLECTIVES)
def test_a_pair_runs_at_the_rates_of_two_tasks(kernel: Demand, collective: Demand) -> None:
    rates = Device(sms=SMS).pair(kernel, collective)
    assert rates == (DEVICE.rate(kernel, [collective]), DEVICE.rate(collective, [kernel]))
