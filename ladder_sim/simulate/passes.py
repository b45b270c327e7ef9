"""One forward pass: simulated with most of its identical layers left out.

Identical layers are not simulated over and over. A run of identical layers is cut to a few (`Wiring.condense`) and
simulated. If every task of one period is ready, starts and ends exactly one constant later than its twin a period
before, then what the next period meets (the same tasks, the same dependencies, everything it waits for shifted by that
constant) is the same too, and by induction so are all later ones: the run's time grows by that constant per period,
and the shortcut is exact up to rounding. Launches by the CPU only have to come no later: where they run ahead they hold
nothing back. If the periods are not yet equal, more of them are simulated, in the end all.

A pass in which nothing overlaps takes as long as its ops together, and is simulated only when its timeline is read.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence, Set
from functools import cache, cached_property, reduce
from operator import sub
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import CostModel
from ladder_sim.des import engine, scan
from ladder_sim.des.program import Program
from ladder_sim.des.shared import Device, Number, any_true, maximum, minimum, values_of
from ladder_sim.des.timeline import TaskTimes, Timeline
from ladder_sim.graph.ops import Op, PassInputs
from ladder_sim.graph.pass_kernels import kernels_of
from ladder_sim.graph.techniques import form, rewrites_of
from ladder_sim.kernels import WHOLE, Phase, Sizes
from ladder_sim.simulate.breakdown import Breakdown, Collective, PathSums, SimulatedOp, collectives, simulated_ops
from ladder_sim.simulate.lower import COMPUTE, Lead, Schedule, lower, op_times, schedule_pass
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.scenario import Scenario


def _events(program: Program) -> TaskTimes:
    timeline = engine.run(program)
    return timeline.ready_s.tolist(), timeline.start_s.tolist(), timeline.end_s.tolist()


Engine = Literal["fast", "des"]
# one vectorised pass, or event by event on simpy: the same times
ENGINES: Mapping[Engine, Callable[[Program], TaskTimes]] = {"fast": scan.scan, "des": _events}

# ops at the size of a pass and what each costs, by their numbers in `PassKernels.distinct`
Prices = Mapping[int, tuple[Op, Estimate]]

# periods of a run simulated at first: a twin, the one that stands for the rest, and one after it
FIRST_PERIODS = 3
# how many times as many periods each later attempt has
MORE = 1.5
# share of a pass by which all periods left out may together differ from what stands for them: rounding of sums, not a
# model error; each may have its part of it only, because what differs may shrink slowly from period to period
STEADY = 1e-9
# share of a pass by which ops of one kind must differ from another pass's to be named
SAME = 1e-4

# seconds of simulated layers and of those left out, and whether the kept ones are periodic
_Added = tuple[Number, Number, "bool | NDArray[np.bool_]"]
# times of tasks, and what follows from them
_Ran = tuple[TaskTimes, Number, Number, "bool | NDArray[np.bool_]"]
Attempts = Generator[tuple[Schedule, Program, "NDArray[Any] | None"], _Added, Number]
# single configurations that were simulated: many techniques change some of a wiring's passes only. 25 kB each
_KEPT: dict[tuple[object, ...], _Ran] = {}
_MOST_KEPT = 512


class ForwardPass:
    """One forward pass of one variant: how long it takes, and on demand what it is made of.

    Numbers may be arrays of one value per configuration; a timeline is one configuration's. The schedule has some of
    its layers left out. `like` is a pass of the same schedule: if it was simulated before, this one starts with as many
    periods. Passes with the same ops share a `device`: how these slow each other is computed once. `follow` of several
    configurations follows the critical path of each while times are there, for `path`.
    """

    def __init__(
        self,
        schedule: Schedule,
        prices: Prices,
        hardware: Hardware,
        gpu: GpuSpec,
        engine: Engine = "fast",
        like: "ForwardPass | None" = None,
        device: Device | None = None,
        *,
        follow: bool = False,
    ) -> None:
        self.schedule, self.prices, self.hardware, self.gpu, self.engine = schedule, prices, hardware, gpu, engine
        self._like, self._device, self._follow = like, device or Device(sms=gpu.sms), follow

        # what was simulated for it
        self._ran: Sequence[Any] = ()

        # of several configurations: sums over critical paths, each with the rows that it has or replaces
        self._sums: list[tuple[Any, PathSums]] = []

    @cached_property
    def seconds(self) -> Number:
        """Start to end."""
        if self.schedule.order.serial and self.engine == "fast":
            return self._serial_s(eager=self.schedule.eager)
        *ran, seconds = self._run()
        if not isinstance(seconds, np.ndarray):
            self._ran = ran
        return seconds

    @cached_property
    def path(self) -> Breakdown | PathSums:
        """What its error depends on."""
        serial = self.schedule.order.serial and self.engine == "fast"
        # launches hold back nothing but the first op
        if serial and not any_true(self.seconds > (1.0 + STEADY) * self._serial_s(eager=False)):
            return PathSums.in_turn(self.schedule, self.estimates(self.schedule), self._op_times[0])
        if not isinstance(self.seconds, np.ndarray):
            return self.breakdown
        if not self._sums:
            self._follow = True
            self._run()
        return PathSums.joined(self._sums, len(self.seconds))

    def at_own_duty(self) -> "ForwardPass":
        """Return the pass with GEMMs slowed only for the share of its time in which tensor cores multiply.

        While a rank waits for a collective, or normalises, it draws less power, and its next GEMM runs faster. Mixed
        steps are priced at the share of the time that prompts take, of which tensor cores multiply as long as in them.
        """
        if self.schedule.kernels.rank.phase == "decode":
            return self
        slowed_s: Number = 0.0
        multiplied_s: Number = 0.0
        for (op, estimate), count in zip(self.priced, self.schedule.order.counts, strict=True):
            slowed_s = slowed_s + count * estimate.slowed_s
            if op.shape.on_tensor_cores:
                multiplied_s = multiplied_s + count * estimate.seconds
        if not any_true(slowed_s > 0.0):
            return self
        # duty * (seconds - slowed_s + duty * slowed_s) = cold_s + duty * slowed_s
        cold_s, half_s = multiplied_s - slowed_s, 0.5 * self.seconds - slowed_s
        duty = cold_s / (half_s + (half_s * half_s + slowed_s * cold_s) ** 0.5)
        # parts of a pass have the estimates of others as large
        slowed = cache(lambda estimate: estimate.at_duty(duty))
        prices = {
            number: (op, slowed(estimate))
            for number, (op, estimate) in zip(self.schedule.numbers, self.priced, strict=True)
        }
        return ForwardPass(
            self.schedule, prices, self.hardware, self.gpu, self.engine, self, self._device, follow=self._follow
        )

    @cached_property
    def slowest_stage(self) -> Number:
        """Part of its time that the slowest pipeline stage takes, by what the ops of each take one by one."""
        if not self.schedule.order.stages:
            return 1.0
        durations_s, leads_s, _ = self._op_times
        stages_s = [
            sum(count * (durations_s[like] + leads_s[lead]) for (like, lead), count in stage.items())
            for stage in self.schedule.order.stages
        ]
        return reduce(maximum, stages_s) / sum(stages_s)

    def round_trips(self, passes: Number) -> Number:
        """Return how many times its length it takes, where so many go through the pipeline's stages in turn.

        Once, unless its slowest stage has more to do for all of them.
        """
        return maximum(1.0, passes * self.slowest_stage)

    @cached_property
    def _op_times(self) -> tuple[list[Number], dict[Lead, Number], Number]:
        return op_times(self.schedule, self.estimates(self.schedule), self.hardware)

    def _serial_s(self, *, eager: bool) -> Number:
        return _serial_s(self.schedule, self.estimates(self.schedule), *self._op_times, eager=eager)

    @property
    def priced(self) -> list[tuple[Op, Estimate]]:
        """The op of each role, at the size that it has in the pass, and its estimate."""
        return [self.prices[number] for number in self.schedule.numbers]

    def estimates(self, schedule: Schedule) -> list[Estimate]:
        """Return the estimate of each role in a schedule of this pass, alone on its GPU."""
        return [self.prices[number][1] for number in schedule.numbers]

    def distinct(self, schedule: Schedule) -> list[Op]:
        """Return the op of each role in a schedule of this pass, at the size that it has in the pass."""
        return [self.prices[number][0] for number in schedule.numbers]

    def lowered(self, keep: int, hardware: Hardware | None = None) -> tuple[Schedule, Program]:
        """Return schedule and tasks of this pass, with `keep` periods of each run of layers, on `hardware` if given."""
        own = self.schedule
        schedule = schedule_pass(own.kernels, own.variant, keep, own.rewrites)
        return schedule, self._lower(schedule, hardware or self.hardware)

    def _lower(self, schedule: Schedule, hardware: Hardware) -> Program:
        return lower(schedule, self.estimates(schedule), hardware, self._device)

    def attempts(self) -> Attempts:
        """Yield few of its periods to be simulated, then more, and in the end all, which is always steady.

        Of several configurations those that are not steady go on: their numbers come with the program, None for all.
        Takes what `added_seconds` says of each attempt, and returns the seconds of the pass.
        """
        schedule = self._like._ran[0] if self._like and self._like._ran else self.schedule
        program = self._lower(schedule, self.hardware)
        seconds: Number = 0.0
        left: NDArray[Any] | None = None
        while True:
            makespan_s, added_s, steady = yield schedule, program, left
            if left is not None and isinstance(seconds, np.ndarray):
                seconds[left] = makespan_s + added_s
            else:
                seconds = makespan_s + added_s
            if steady is True or np.all(steady):
                return seconds
            # most passes that are not steady yet take one period more, a few take 40
            keep = schedule.keep + 1 if schedule.keep == FIRST_PERIODS else int(MORE * schedule.keep)
            schedule, program = self.lowered(keep)
            if isinstance(seconds, np.ndarray):
                left = np.arange(len(seconds)) if left is None else left
                left = left[~np.broadcast_to(steady, len(left))]
                program = program if len(left) == len(seconds) else program.of(left)

    def _run(self) -> tuple[Schedule, Program, TaskTimes, Number]:
        attempts = self.attempts()
        schedule, program, left = next(attempts)
        while True:
            times, makespan_s, added_s, steady = self._once(schedule, program)
            if self._follow:
                errors = [estimate.error for estimate in self.estimates(schedule)]
                if left is not None:
                    errors = [values_of(error, left) for error in errors]
                rows = slice(None) if left is None else left
                self._sums.append((rows, PathSums.of(schedule, errors, program, times)))
            try:
                schedule, program, left = attempts.send((makespan_s, added_s, steady))
            except StopIteration as done:
                return schedule, program, times, done.value

    def _once(self, schedule: Schedule, program: Program) -> "_Ran":
        """Simulate a program, or return what a program of the same tasks and times has taken."""
        run, device = ENGINES[self.engine], program.device
        key = run, device and device.sms, program.outline, *program.costs
        try:
            ran = _KEPT.get(key)
        except TypeError:
            # of several configurations
            times = run(program)
            return times, *added_seconds(schedule, program, times)
        if ran is None:
            if len(_KEPT) >= _MOST_KEPT:
                _KEPT.clear()
            times = run(program)
            ran = _KEPT[key] = times, *added_seconds(schedule, program, times)
        return ran

    @cached_property
    def simulated(self) -> tuple[Schedule, Timeline]:
        """The simulated layers, and when their tasks ran."""
        schedule, program, times = self._ran or self._run()[:-1]
        return schedule, Timeline.of(program, times)

    @property
    def timeline(self) -> Timeline:
        """Timeline of the tasks of the simulated layers: every CPU launch, then every op, in issue order."""
        return self.simulated[1]

    @cached_property
    def _critical(self) -> Set[int]:
        return frozenset(self.timeline.critical_path())

    @cached_property
    def ops(self) -> list[SimulatedOp]:
        """Every simulated op, in issue order."""
        schedule, timeline = self.simulated
        return simulated_ops(schedule, self.distinct(schedule), self.estimates(schedule), timeline, self._critical)

    @cached_property
    def collectives(self) -> list[Collective]:
        """Collectives of the pass, layers left out included, and what each can run next to."""
        schedule, timeline = self.simulated
        return collectives(schedule, self.distinct(schedule), timeline)

    @cached_property
    def seconds_alone(self) -> Mapping[str, Number]:
        """Seconds of all ops of each kind one after the other, with what holds their stream before them."""
        schedule = self.schedule
        durations_s, leads_s, _ = self._op_times
        seconds: dict[str, Number] = defaultdict(float)
        for (like, lead), count in schedule.order.spans.items():
            kind = self.distinct(schedule)[like].kind
            seconds[kind] = seconds[kind] + count * (durations_s[like] + leads_s[lead])
        return seconds

    def differs_from(self, other: "ForwardPass") -> dict[str, float]:
        """Return the seconds by which kinds of ops take longer alone than in another pass, where they differ."""
        own_s, other_s = self.seconds_alone, other.seconds_alone
        longer_s = {kind: float(own_s.get(kind, 0.0) - other_s.get(kind, 0.0)) for kind in {**other_s, **own_s}}
        return {kind: seconds for kind, seconds in longer_s.items() if abs(seconds) > SAME * float(other.seconds)}

    @cached_property
    def breakdown(self) -> Breakdown:
        """What its time was made of, layers left out included."""
        schedule, timeline = self.simulated
        return Breakdown.of(
            schedule, self.distinct(schedule), self.estimates(schedule), timeline, self._critical, self.gpu
        )


def forward_passes(
    scenario: Scenario,
    variants: Sequence[str],
    costs: CostModel,
    passes: Sequence[tuple[Phase, Sizes]],
    *,
    engine: Engine = "fast",
    keep: int = FIRST_PERIODS,
    follow: bool = False,
    own_duty: bool = True,
) -> dict[str, list[ForwardPass]]:
    """Simulate passes of each of several variants; the ops of all are priced in one call.

    `passes` are the phase and sizes of each; sizes of one pass are all of one form
    (`ladder_sim.graph.techniques`). `keep` periods of each run of identical layers are simulated at first.
    `follow` is as `ForwardPass` takes it. Without `own_duty` passes are as priced, before `ForwardPass.at_own_duty`.
    """
    inputs = PassInputs.of(scenario)
    kinds = [(phase, int(np.max(form(inputs, phase, sizes.tokens)))) for phase, sizes in passes]
    one_token = inputs.of_one_token()
    kernels = {phase: kernels_of(one_token, phase) for phase, _ in kinds}
    schedules = {
        (name, kind): schedule_pass(kernels[kind[0]], name, keep, rewrites_of(inputs, kind[1]))
        for name in variants
        for kind in dict.fromkeys(kinds)
    }
    distinct: dict[tuple[Phase, int], dict[int, Op]] = {kind: {} for kind in kinds}
    for (_, kind), schedule in schedules.items():
        distinct[kind].update(schedule.distinct)
    prices = price(costs, passes, [distinct[kind] for kind in kinds])
    gpu = scenario.cluster.gpu
    device = Device(sms=gpu.sms)
    simulated: dict[str, list[ForwardPass]] = {}
    for name in variants:
        latest: dict[tuple[Phase, int], ForwardPass] = {}
        for kind, known in zip(kinds, prices, strict=True):
            forward = ForwardPass(
                schedules[name, kind], known, costs.hardware, gpu, engine, latest.get(kind), device, follow=follow
            )
            latest[kind] = forward.at_own_duty() if own_duty else forward
            simulated.setdefault(name, []).append(latest[kind])
    return simulated


def price(
    costs: CostModel, passes: Sequence[tuple[Phase, Sizes]], distinct: Sequence[Mapping[int, Op]]
) -> list[Prices]:
    """Price the ops of passes, equal ones once and all in one call, so that each table is looked up once.

    Parts of a pass that are as large as each other have the same prices. Where passes differ in context only
    (`Sizes.apart_from_context`), nothing changes but what reads it. `distinct` has the ops of one token that may run in
    each pass, by number.
    """
    places: list[tuple[int, int, int]] = []
    sized: list[Op] = []
    first: dict[tuple[Phase, Hashable], int] = {}
    alike = []
    for number, ((phase, sizes), ops) in enumerate(zip(passes, distinct, strict=True)):
        start = first.setdefault((phase, sizes.apart_from_context), number)
        alike.append(start)
        # of each part: what its ops are priced by
        parts = {portion: sizes.part(portion) for portion in {op.portion for op in ops.values()}}
        priced_by = {portion: (part.apart_from_context, part.context) for portion, part in parts.items()}
        in_parts: dict[Hashable, int] = {}
        for key, op in ops.items():
            if number != start and not op.shape.reads_context:
                continue
            place = len(sized)
            if op.portion is not WHOLE:
                others, context = priced_by[op.portion]
                # the parts of one op share its shape
                like = op.kind, id(op.shape), others, context if op.shape.reads_context else None
                place = in_parts.setdefault(like, place)
            places.append((number, key, place))
            if place == len(sized):
                sized.append(op.resized(sizes))
    prices: list[dict[int, tuple[Op, Estimate]]] = [{} for _ in passes]
    estimates = costs.estimates(sized)
    for number, key, place in places:
        prices[number][key] = sized[place], estimates[place]
    return [{**prices[start], **own} for start, own in zip(alike, prices, strict=True)]


def simulate(
    scenario: Scenario,
    phase: Phase,
    kv_len: int,
    costs: CostModel,
    *,
    engine: Engine = "fast",
    keep: int = FIRST_PERIODS,
) -> ForwardPass:
    """Simulate one forward pass of `scenario`, of its variant; otherwise as `forward_passes`.

    `phase` and `kv_len` are as in `ladder_sim.graph.pass_kernels.pass_ops`.
    """
    workload = scenario.workload
    batch = scenario.plan.micro_batch(workload.batch)
    sizes = Sizes.of(scenario.stack, phase, kv_len, batch=batch, prompt=workload.prompt, gen=workload.gen)
    passes = forward_passes(scenario, [scenario.variant], costs, [(phase, sizes)], engine=engine, keep=keep)
    return passes[scenario.variant][0]


def _serial_s(
    schedule: Schedule,
    estimates: Sequence[Estimate],
    durations_s: Sequence[Number],
    leads_s: Mapping[Lead, Number],
    launch_s: Number,
    *,
    eager: bool,
) -> Number:
    """Return the seconds of a pass in which nothing overlaps, from `op_times`: its ops and their leads together.

    Where the CPU launches op after op, the pass also lasts as long as any op's launch and everything from that op on.
    Over equal layers that sum is linear, so that it is largest in the first or the last of them, which are both there.
    """
    woken = [lead for lead in leads_s if lead.stream == COMPUTE and lead.waits and lead.collective >= 0]
    leads_s = {**leads_s, **{lead: leads_s[lead] + estimates[lead.collective].wake_s for lead in woken}}
    if not eager:
        held_s = sum((count * leads_s[lead] for (_, lead), count in schedule.order.spans.items()), start=launch_s)
        return sum((count * durations_s[like] for (like, _), count in schedule.order.spans.items()), start=held_s)
    spans_s = [durations_s[like] + leads_s[lead] for like, lead in schedule.order.spans]
    in_order = schedule.spans_in_order
    # the sum can be larger than the one from the op before only where that op is shorter than a launch
    short = [any_true(seconds < launch_s) for seconds in spans_s]
    left_out = {period.ops[-1]: period for period in schedule.order.periods}
    launches = sum(schedule.order.spans.values())
    left_s: Number = 0.0
    longest_s: Number = 0.0
    for number in reversed(range(len(in_order))):
        if number in left_out:
            period = left_out[number]
            left_s = left_s + period.left_out * sum(spans_s[in_order[op]] for op in period.ops)
            launches -= period.left_out * len(period.ops)
        left_s = left_s + spans_s[in_order[number]]
        if number == 0 or short[in_order[number - 1]]:
            longest_s = maximum(longest_s, left_s + launches * launch_s)
        launches -= 1
    return longest_s


def added_seconds(schedule: Schedule, program: Program, times: TaskTimes) -> _Added:
    """Return the seconds of simulated layers, those of left-out layers, and whether the kept ones are periodic."""
    makespan_s = reduce(maximum, (times[2][number] for number in program.outline.last_tasks))
    added_s: Number = 0.0
    steady: bool | NDArray[np.bool_] = True
    launches = len(program.tasks) - len(schedule.layout.names)
    own_s = [column[launches:] for column in times]
    launched_s, ready_s = times[2][:launches], own_s[0]
    for period in schedule.order.periods:
        if len(period.ops) != len(period.twins):
            # the first of a run has other adds, behind a layer that reduces nothing
            return makespan_s, added_s, False
        pairs = list(zip(period.ops, period.twins, strict=True))
        later_s: list[Number] = []
        for column in own_s:
            of = column.__getitem__
            later_s += map(sub, map(of, period.ops), map(of, period.twins))
        low, high = _range(later_s)
        left_out = period.left_out
        steady = steady & (left_out * (high - low) <= STEADY * makespan_s)
        if schedule.eager and launches:
            # a thread that launches more slowly than this would fall behind in time
            _, most_s = _range([launched_s[late] - launched_s[early] for late, early in pairs])
            behind_s = left_out * (most_s - low)
            steady = steady & (behind_s <= STEADY * makespan_s)
            # one that runs ahead is further ahead behind the layers left out: later ops must not depend on how far
            ahead = behind_s < -STEADY * makespan_s
            if any_true(ahead):
                held_back: bool | NDArray[np.bool_] = False
                for number in range(max(period.ops) + 1, len(ready_s)):
                    held_back = held_back | (launched_s[number] >= ready_s[number])
                steady = steady & ~(np.asarray(ahead) & held_back)
        added_s = added_s + left_out * 0.5 * (low + high)
    return makespan_s, added_s, steady


def _range(values: Sequence[Number]) -> tuple[Number, Number]:
    if np.ndarray in set(map(type, values)):
        return reduce(minimum, values), reduce(maximum, values)
    return min(values), max(values)
