"""Simulates steps of any mix of requests, thousands at once: what `StepTimes` is made from and compared with."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import CostModel
from ladder_sim.des.shared import Floats, Number
from ladder_sim.graph.ops import Op, PassInputs
from ladder_sim.graph.techniques import form
from ladder_sim.kernels import Phase, Sizes
from ladder_sim.simulate.lower import op_times
from ladder_sim.simulate.passes import FIRST_PERIODS, ForwardPass, forward_passes
from ladder_sim.specs.scenario import Scenario

# periods of equal layers that are simulated at first: of thousands of steps, some need one more than most do
PERIODS = FIRST_PERIODS + 1


class Mixes(NamedTuple):
    """As `Mix`, of many steps: arrays of one value each."""

    decoding: Floats
    context: Floats
    prompts: Floats
    chunk: Floats
    pairs: Floats


class Attention(NamedTuple):
    """Attention of many steps as it is wanted, relative to that of their requests: arrays of one value each."""

    decode: Floats
    """How many times as long that of requests that decode takes."""
    prompts: Floats
    """How many times as long attention of prompts takes."""


_Columns = TypeVar("_Columns", Mixes, Attention)


class StepKernels(NamedTuple):
    """Kernels of many steps that grow with something else than tokens: arrays of one value each."""

    decode_s: Floats
    """Attention of requests that decode, in all layers, seconds."""
    prompt_s: Floats
    """Attention of prompts, in all layers, seconds."""
    head_s: Floats
    """What grows with the sequences: logits and tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """Steps of one variant, every one a forward pass of its own; of one call all run prompts, or none does."""

    scenario: Scenario
    """What runs."""
    variant: str
    """Residual wiring."""
    costs: CostModel
    """Times of its ops."""

    def kernels(self, steps: Mixes) -> StepKernels:
        """Return the seconds of some kernels of the steps."""
        return StepKernels(*self._each(_kernels, steps, None, None))

    def seconds(self, steps: Mixes, *, duty: Floats | None = None, attention: Attention | None = None) -> Floats:
        """Simulate steps, start to end, without the CPU's time for each request.

        In a pipeline as many steps run as there are stages: the next of the same requests waits for all of them. `duty`
        is each step's share of the time that prompts take (`ladder_sim.kernels.gemm.GemmShape.duty`), none by default;
        `attention` replaces that of the steps' requests.
        """
        stages = self.scenario.plan.pp
        (seconds,) = self._each(
            lambda forward: (forward.seconds * forward.round_trips(stages),), steps, duty, attention
        )
        return seconds

    def changes(self, phase: Phase, most: int) -> Floats:
        """Return the tokens of steps between which the form changes: last of one and first of the next, to `most`."""
        tokens: Any = np.arange(1.0, most + 1.0)
        forms = form(PassInputs.of(self.scenario), phase, tokens)
        last = tokens[:-1][forms[1:] != forms[:-1]]
        return np.concatenate([last, last + 1.0])

    def _each(
        self,
        measure: Callable[[ForwardPass], Sequence[Number]],
        steps: Mixes,
        duty: Floats | None,
        attention: Attention | None,
    ) -> Sequence[Floats]:
        """Evaluate `measure` on every step; steps of one form are evaluated together."""
        count = len(steps.decoding)
        tokens: Any = steps.decoding + steps.chunk
        forms = form(PassInputs.of(self.scenario), "mixed" if np.any(steps.prompts) else "decode", tokens)
        measured: dict[int, Floats] = defaultdict(lambda: np.empty(count))
        for alike in np.unique(forms):
            rows = np.flatnonzero(forms == alike)
            phase, sizes = _sizes(self.scenario, rows_of(steps, rows), 0.0 if duty is None else duty[rows])
            costs = self.costs if attention is None else _WithAttention(self.costs, rows_of(attention, rows))
            passes = forward_passes(self.scenario, [self.variant], costs, [(phase, sizes)], keep=PERIODS)
            (forward,) = passes[self.variant]
            for number, values in enumerate(measure(forward)):
                measured[number][rows] = values
        return list(measured.values())


def rows_of(columns: _Columns, rows: NDArray[np.int_]) -> _Columns:
    """Return some of the steps."""
    return type(columns)(*(values[rows] for values in columns))


def _sizes(scenario: Scenario, steps: Mixes, duty: float | Floats) -> tuple[Phase, Sizes]:
    """Return the sizes of passes; chunks count as average ones with the same number, tokens and pairs."""
    stack = scenario.stack
    context: Any = steps.context / steps.decoding
    sizes: dict[str, Any] = {"batch": steps.decoding, "prompt": 1, "gen": 1}
    if not np.any(steps.prompts):
        return "decode", Sizes.of(stack, "decode", context, **sizes)
    sizes |= {"prompt": steps.pairs / steps.chunk, "prompts": steps.prompts, "chunk": steps.chunk / steps.prompts}
    return "mixed", Sizes.mixed(stack, context, duty=duty, **sizes)


def _kernels(forward: ForwardPass) -> tuple[Number, ...]:
    """Return the kernels of one pass, as `StepKernels` has them."""
    schedule = forward.schedule
    estimates, ops = forward.estimates(schedule), forward.distinct(schedule)
    durations_s, _, _ = op_times(schedule, estimates, forward.hardware)
    counts = Counter[int]()
    for (role, _), count in schedule.order.spans.items():
        counts[role] += count
    return tuple(
        sum((count * durations_s[role] for role, count in counts.items() if belongs(ops[role])), start=0.0)
        for belongs in (_decodes, _runs_prompts, lambda op: op.kind == "lm_head" or op.shape.per_sequence)
    )


def _runs_prompts(op: Op) -> bool:
    """Whether an op of a step is attention of prompts."""
    return op.kind == "expand" or (op.kind == "attention" and bool(getattr(op.shape, "shares_step", False)))


def _decodes(op: Op) -> bool:
    return op.kind in ("attention", "bmm") and not _runs_prompts(op)


class _WithAttention:
    """Costs with other attention."""

    def __init__(self, costs: CostModel, attention: Attention) -> None:
        self._costs, self._attention = costs, attention

    @property
    def hardware(self) -> Hardware:
        return self._costs.hardware

    def estimates(self, ops: Sequence[Op]) -> Sequence[Estimate]:
        return list(map(self._of, ops, self._costs.estimates(ops)))

    def _of(self, op: Op, estimate: Estimate) -> Estimate:
        if _decodes(op):
            return replace(estimate, seconds=estimate.seconds * self._attention.decode)
        if _runs_prompts(op):
            return replace(estimate, seconds=estimate.seconds * self._attention.prompts)
        return estimate
