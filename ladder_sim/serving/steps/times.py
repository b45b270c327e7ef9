"""Times of an engine's steps for any mix of requests, in microseconds a call: `StepTimes`.

A step is a forward pass whose ops grow with different things: nearly all with its tokens, attention with contexts,
logits with sequences. Attention is one kernel of each layer, and a step takes

    attention + rest(tokens, attention) + head(sequences)

The rest is the same for every attention where nothing overlaps. Where collectives hide behind attention, it depends
also on the part that requests that decode have in it. Each part of a step is simulated on a grid of its own and linear
between; that of the rest is refined wherever a simulated step differs from what it gives, so that steps at which an
engine changes kernels stay sharp.
"""

import contextlib
import copy
import hashlib
import io
import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.fingerprint import fingerprint
from ladder_sim.costs.hardware import host_step_s
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.graph.techniques import DECODE_TOKENS, PROMPT_TOKENS
from ladder_sim.prediction import resolve_profile
from ladder_sim.serving.steps.grids import DUTIES, KINDS, PARTS, Grids
from ladder_sim.serving.steps.mix import Line, Mix, StepLimits
from ladder_sim.serving.steps.rest import Rest
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import ROUNDS, SPREAD
from ladder_sim.system.files import cache_folder, replacing
from ladder_sim.wirings.names import canonical_names, parse

_LARGER = "for larger steps, give StepTimes.of other limits, e.g. limits=StepLimits(1024, 8192, 131072)"
# tokens of the longest request that times are made for by default; fewer where the model takes fewer
CONTEXT = 16384


class Axis:
    """Grid values of one coordinate: at least two, increasing.

    Single points are looked up in a few microseconds: numpy takes as long for one as for a thousand.
    """

    __slots__ = ("last", "values")

    def __init__(self, values: Floats) -> None:
        self.values: Sequence[float] = values.tolist()

        # the highest cell
        self.last = len(self.values) - 2

    def place(self, value: float) -> tuple[int, float]:
        """Return the cell of a value, and how far it is on the way to the cell's upper end."""
        values = self.values
        cell = bisect_right(values, value) - 1
        if cell < 0:
            return 0, 0.0
        if cell > self.last:
            return self.last, 1.0
        low = values[cell]
        return cell, (value - low) / (values[cell + 1] - low)


class Grid:
    """Values at the points of some axes: linear between neighbours, constant beyond the ends."""

    __slots__ = ("axes", "values")

    def __init__(self, axes: Sequence[Axis], values: NDArray[Any]) -> None:
        self.axes, self.values = axes, values.tolist()

    def at(self, *coordinates: float) -> float:
        """Return the value at a point; its coordinates are in the order of the axes."""
        value: float = _linear(self.values, [axis.place(at) for axis, at in zip(self.axes, coordinates, strict=True)])
        return value

    def corners(self, *coordinates: float) -> list[tuple[Any, float]]:
        """Return the values between which the value at a point lies, and the weight of each."""
        corners = [(self.values, 1.0)]
        for axis, coordinate in zip(self.axes, coordinates, strict=True):
            cell, up = axis.place(coordinate)
            if up in (0.0, 1.0):
                cell += int(up)
                corners = [(values[cell], weight) for values, weight in corners]
            else:
                low = 1.0 - up
                corners = [
                    corner
                    for values, weight in corners
                    for corner in ((values[cell], weight * low), (values[cell + 1], weight * up))
                ]
        return corners


def _linear(values: Sequence[Any], places: Sequence[tuple[int, float]], depth: int = 0) -> Any:
    """Return the value between nested ones; `places` are the cells of the axes from `depth` on."""
    cell, up = places[depth]
    depth += 1
    if depth == len(places):
        low = values[cell]
        return low + up * (values[cell + 1] - low) if up else low
    low = _linear(values[cell], places, depth)
    return low + up * (_linear(values[cell + 1], places, depth) - low) if up else low


class StepTimes:
    """How long steps of one variant take, for any mix of requests.

    Parameters
    ----------
    grids
        Simulated times.
    limits
        The largest step.
    host_request_s, host_step_s
        CPU time of each request that decodes, and of a step.
    split_from
        Tokens from which steps that decode, and steps with prompts, run in parts (token-split); infinite: none does.

    Examples
    --------
    >>> from ladder_sim import Scenario
    >>> from ladder_sim.serving import StepTimes
    >>> scenario = Scenario(model="70b", stack="vllm")
    >>> for variant in ("standard", "ladder"):
    ...     times = StepTimes.of(scenario, variant)
    ...     print(variant, round(1e3 * times.seconds(decode=[1024] * 64, prefill=[(512, 0)]), 1), "ms")
    standard 32.5 ms
    ladder 27.0 ms
    """

    def __init__(
        self,
        grids: Grids,
        limits: StepLimits,
        *,
        host_request_s: float,
        host_step_s: float,
        split_from: tuple[float, float],
    ) -> None:
        self.limits, self.host_request_s, self.host_step_s = limits, host_request_s, host_step_s
        self._factor = 1.0
        requests, contexts, lengths = Axis(grids.requests), Axis(grids.contexts), Axis(grids.lengths)
        self._decode = [(np.array(requests.values), decode_s) for decode_s in grids.decode_s]
        self._contexts = np.array(contexts.values)
        self._split_from = split_from
        self._prompt = Grid([Axis(grids.shares), requests, lengths], grids.prompt_s)
        self._head = Polyline(grids.rows, grids.head_s)
        self._decode_rest, self._mixed_rest = _RestTimes(grids.decode), _RestTimes(grids.mixed)

        # made once: attention of so many requests that decode, and steps of these
        self._attention: dict[tuple[int, int], Polyline] = {}
        self._decoding: dict[tuple[int, int], Polyline] = {}

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        variant: str | None = None,
        *,
        profile: str | CalibrationProfile | None = None,
        limits: StepLimits | None = None,
    ) -> Self:
        """Simulate the steps of a scenario, or read them from an earlier call's file.

        Parameters
        ----------
        scenario
            Model, GPUs, plan and stack; its requests do not count.
        variant
            Residual wiring; the scenario's by default.
        profile
            As in `ladder_sim.predict`.
        limits
            The largest step; by default 1024 requests, the tokens of the stack's steps, and contexts of `CONTEXT`.

        Raises
        ------
        UsageError
            The stack runs static batches only.
        """
        if not scenario.stack.serves:
            raise UsageError(
                f"stack '{scenario.stack.name}' runs static batches only: its steps take no mix of requests",
                hint="take one that batches continuously, e.g. --stack vllm",
            )
        (name,) = canonical_names(variant or scenario.variant)
        parse(name).check(scenario.model.layers)
        measured = resolve_profile(scenario, profile)
        costs = KernelCosts(scenario, measured)
        limits = limits or StepLimits(1024, scenario.step_tokens, min(CONTEXT, scenario.model.max_positions))
        moe = measured.moe if measured and (scenario.model.experts or scenario.model.kv_lora_rank) else None
        # requests do not count
        workload = replace(
            scenario.workload,
            batch=scenario.plan.attention_dp,
            concurrency=None,
            prompt=1,
            gen=1,
            spread=SPREAD,
            rounds=ROUNDS,
        )
        one_replica = scenario.having(workload=workload, plan=replace(scenario.plan, dp=1))
        made_from = [one_replica, name, measured, moe, *limits]
        grids = cached(made_from, lambda: Grids.of(scenario, name, costs, limits))
        return cls(
            grids,
            limits,
            host_request_s=float(costs.hardware.stack.host_request_s),
            host_step_s=float(host_step_s(scenario, costs.hardware.stack)),
            split_from=(DECODE_TOKENS, PROMPT_TOKENS) if "token-split" in scenario.techniques else (math.inf, math.inf),
        )

    def slower(self, factor: float) -> Self:
        """Return the step times, each `factor` times as long."""
        other = copy.copy(self)
        other._factor = factor * self._factor
        return other

    def seconds(
        self, decode: Iterable[int] = (), prefill: Iterable[tuple[int, int]] = (), *, duty: float = 0.0
    ) -> float:
        """Return the seconds of a step, from its start to that of the next.

        Parameters
        ----------
        decode
            Of each request that decodes, the tokens that it reads, its new one included.
        prefill
            Of each chunk of a prompt, its new tokens and those before it. A single one is a request that decodes.
        duty
            Share of the time that prompts take: the GPU's power limit slows those that never pause.

        Raises
        ------
        UsageError
            The step is empty or holds what is no number of tokens, or it is larger than the limits.

        Examples
        --------
        >>> from ladder_sim import Scenario
        >>> times = StepTimes.of(Scenario(model="8b", tp=1, stack="vllm"), "standard")
        >>> short, long = times.seconds(prefill=[(512, 0)]), times.seconds(prefill=[(512, 8192)])
        >>> f"{1e3 * short:.1f} ms, after 8192 tokens {1e3 * long:.1f} ms"
        '12.1 ms, after 8192 tokens 14.9 ms'
        """
        contexts = list(decode)
        try:
            chunks = [(new, before) for new, before in prefill]
        except (TypeError, ValueError):
            raise UsageError(
                "prefill: each chunk must be two numbers",
                hint="its new tokens and those before it, e.g. prefill=[(512, 0)]",
            ) from None
        for name, tokens, least in (
            ("decode", contexts, 1),
            ("prefill, new tokens", [new for new, _ in chunks], 1),
            ("prefill, tokens before", [before for _, before in chunks], 0),
            ("prefill, new tokens and those before", [sum(chunk) for chunk in chunks], 1),
        ):
            _check_tokens(name, tokens, least, self.limits.context)
        mix = Mix.of(contexts, chunks)
        for number, limit, what in (
            (mix.decoding + mix.prompts, self.limits.requests, "requests"),
            (mix.tokens, max(self.limits.tokens, self.limits.requests), "tokens"),
        ):
            if not 1 <= number <= limit:
                raise UsageError(f"a step of {number} {what}: must be 1 to {limit}", hint=_LARGER)
        if not 0.0 <= duty <= 1.0:
            raise UsageError(f"duty {duty}: must be 0 to 1", hint="the share of the time that prompts take")
        return self.of_mix(mix, duty)

    def of_mix(self, mix: Mix, duty: float = 0.0) -> float:
        """Return the seconds of a step of requests that are added up, without checks, in a few microseconds.

        Parameters
        ----------
        mix
            Requests of the step, within the limits.
        duty
            As in `seconds`.

        Examples
        --------
        >>> from ladder_sim import Scenario
        >>> times = StepTimes.of(Scenario(model="8b", tp=1, stack="vllm"), "standard")
        >>> mix = Mix(decoding=64, context=64 * 1024)
        >>> times.of_mix(mix) == times.seconds(decode=[1024] * 64)
        True
        """
        decoding, context, prompts, chunk, pairs, drafted = mix
        if not prompts:
            return self._factor * self._steps(decoding, drafted).at(context / decoding)
        # each row has logits
        rows = decoding + drafted
        tokens = rows + chunk
        decode_s = 0.0
        if decoding:
            decode_s = self._attention_of(decoding, int(tokens >= self._split_from[1])).at(context / decoding)
        length = pairs / chunk
        attention_s = decode_s + self._prompt.at(chunk / prompts / length, prompts, length)
        rest_s = self._mixed_rest.at(tokens, attention_s, _KINDS.corners(duty, decode_s / attention_s))
        host_s = self.host_step_s + self.host_request_s * decoding
        return self._factor * (attention_s + rest_s + self._head.at(rows + prompts) + host_s)

    def line(self, mix: Mix) -> Line:
        """Return the seconds of a step that decodes, and of those after it."""
        first_s, more_s, steps = self._steps(mix.decoding, mix.drafted).line(mix.context / mix.decoding)
        return Line(self._factor * first_s, self._factor * more_s, steps)

    def _attention_of(self, decoding: int, which: int) -> "Polyline":
        """Return the seconds of attention of requests that decode, by the tokens that each of them reads."""
        key = decoding, which
        if key not in self._attention:
            requests, decode_s = self._decode[which]
            at = np.interp(decoding, requests, np.arange(len(requests), dtype=np.float64))
            low = min(int(at), len(requests) - 2)
            seconds = decode_s[low] + (at - low) * (decode_s[low + 1] - decode_s[low])
            self._attention[key] = Polyline(self._contexts, seconds)
        return self._attention[key]

    def _steps(self, decoding: int, drafted: int) -> "Polyline":
        """Return the seconds of steps that decode so many requests, by the tokens that each of them reads."""
        key = decoding, drafted
        if key not in self._decoding:
            rows = decoding + drafted
            attention = self._attention_of(decoding, int(rows >= self._split_from[0]))
            points = attention.refined(self._decode_rest.nodes(rows))
            attention_s = np.interp(points, attention.points, attention.values)
            rest_s = np.array([self._decode_rest.at(rows, each_s, _DECODES) for each_s in attention_s.tolist()])
            others_s = self._head.at(rows) + self.host_step_s + self.host_request_s * decoding
            self._decoding[key] = Polyline(points, attention_s + rest_s + others_s)
        return self._decoding[key]


class Polyline:
    """Values at increasing points: linear between neighbours, constant beyond the ends."""

    __slots__ = ("points", "values")

    def __init__(self, points: Floats, values: Floats) -> None:
        self.points, self.values = (array("d", np.asarray(each, np.float64).tobytes()) for each in (points, values))

    def line(self, at: float) -> tuple[float, float, int]:
        """Return the value at a point, the slope there, and how many points, one apart, have that slope to them."""
        points, values = self.points, self.values
        cell = bisect_right(points, at) - 1
        if cell < 0:
            return values[0], 0.0, 1
        if cell > len(points) - 2:
            return values[-1], 0.0, _MANY
        low, high = points[cell], points[cell + 1]
        slope = (values[cell + 1] - values[cell]) / (high - low)
        return values[cell] + (at - low) * slope, slope, int(high - at) + 1

    def at(self, at: float) -> float:
        """Return the value at a point."""
        points, values = self.points, self.values
        cell = bisect_right(points, at) - 1
        if cell < 0:
            return values[0]
        if cell > len(points) - 2:
            return values[-1]
        low, low_s = points[cell], values[cell]
        return low_s + (at - low) * ((values[cell + 1] - low_s) / (points[cell + 1] - low))

    def refined(self, levels: Floats) -> Floats:
        """Return the points, and those at which the value is one of some levels."""
        points, values = np.array(self.points), np.array(self.values)
        low, high = values[:-1, None], values[1:, None]
        cells, which = np.nonzero((levels - low) * (levels - high) < 0.0)
        up = (levels[which] - values[cells]) / (values[cells + 1] - values[cells])
        return np.unique(np.concatenate([points, points[cells] + up * (points[cells + 1] - points[cells])]))


# of steps that take equally long
_MANY = 1 << 30
# steps that decode are of one kind
_DECODES = [(0, 1.0)]
_KINDS = Grid([Axis(np.array(nodes)) for nodes in (DUTIES, PARTS)], KINDS)


class _RestTimes:
    """A `Rest` to look up."""

    def __init__(self, rest: Rest) -> None:
        lines = rest.lines()
        self.tokens = Axis(np.array(list(lines)))
        self._lines = [(Axis(line.attention_s), line.rests_s.T.tolist()) for line in lines.values()]

    def nodes(self, tokens: float) -> Floats:
        """Return the seconds of attention at which steps with so many tokens may bend."""
        cell, up = self.tokens.place(tokens)
        axes = [self._lines[line][0].values for line in ((cell, cell + 1) if up else (cell,))]
        return np.unique(np.concatenate(axes))

    def at(self, tokens: float, attention_s: float, kinds: Sequence[tuple[int, float]]) -> float:
        """Return the weighted seconds of steps of some kinds, with their tokens and the seconds of attention."""
        cell, up = self.tokens.place(tokens)
        low_s = self._on(cell, attention_s, kinds)
        return low_s + up * (self._on(cell + 1, attention_s, kinds) - low_s) if up else low_s

    def _on(self, line: int, attention_s: float, kinds: Sequence[tuple[int, float]]) -> float:
        axis, points = self._lines[line]
        cell, up = axis.place(attention_s)
        low, high, down = points[cell], points[cell + 1], 1.0 - up
        rest_s = 0.0
        for kind, weight in kinds:
            rest_s += weight * (down * low[kind] + up * high[kind])
        return rest_s


def _check_tokens(name: str, tokens: Sequence[int], least: int, most: int) -> None:
    if not tokens:
        return
    # of each type once: a step has hundreds of requests
    for of_type in set(map(type, tokens)):
        if not issubclass(of_type, Integral):
            number = next(each for each in reversed(tokens) if type(each) is of_type)
            raise UsageError(f"{name}: {number!r}: must be a whole number", hint="tokens of each request")
    for number in (min(tokens), max(tokens)):
        if not least <= number <= most:
            raise UsageError(f"{name}: {number}: must be {least} to {most}", hint=_LARGER)


# the oldest files beyond so many are deleted: half a gigabyte
MOST_FILES = 256
_HASH_BYTES = hashlib.sha256().digest_size


def cached(made_from: Sequence[object], make: Callable[[], Grids]) -> Grids:
    """Return what `make` returns, from the file of an earlier call if there is one, named by what it was made from.

    A file can be deleted at any time, and one that is damaged is made again: it begins with a hash of the rest. Where
    none can be read or written, times are made in every process. Processes may share the folder: a file is whole, or
    not there.
    """
    path = folder() / f"{fingerprint(*made_from)}.npz"
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content[_HASH_BYTES:]).digest() == content[:_HASH_BYTES]:
            return _read(content[_HASH_BYTES:])
    grids = make()
    # a disk that is full, or not ours
    with contextlib.suppress(OSError):
        _write(path, grids)
    return grids


def folder() -> Path:
    """Return the folder of the files."""
    return cache_folder() / "step-times"


def _write(path: Path, grids: Grids) -> None:
    file = io.BytesIO()
    np.savez(file, **_arrays(grids))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as target:
        target.write(hashlib.sha256(file.getbuffer()).digest())
        target.write(file.getbuffer())
    files = sorted(path.parent.glob("*.npz"), key=lambda each: each.stat().st_mtime)
    for oldest in files[:-MOST_FILES]:
        oldest.unlink(missing_ok=True)


def _arrays(grids: Grids) -> dict[str, Any]:
    """Return the arrays by name; those of a `Rest` have a dot in it."""
    return {
        f"{name}.{column}" if column else name: values
        for name, part in grids._asdict().items()
        for column, values in (part._asdict() if isinstance(part, Rest) else {"": part}).items()
    }


def _read(content: bytes) -> Grids:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        parts: dict[str, Any] = {
            name: file[name] if name in file else Rest(*(file[f"{name}.{column}"] for column in Rest._fields))
            for name in Grids._fields
        }
    return Grids(**parts)
