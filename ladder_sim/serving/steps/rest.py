"""What a step takes beyond attention and logits, by its tokens and its attention: an adaptive grid.

Where nothing overlaps, the rest is the same for every attention. Where a collective hides behind attention, it is less
for a longer one, until all is hidden; where the CPU launches kernel after kernel, likewise. So each number of tokens
has a line over attention of its own, halved where it bends; and numbers of tokens are added wherever the lines of
their neighbours do not say what theirs is, down to the very number at which an engine takes another kernel.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_sim.des.shared import Floats

# lines are refined until simulated steps differ by no more, as a fraction of the step: a fifth of what is promised
TOLERANCE = 0.008
# ratio of the contexts at which a line is simulated first, and of neighbours below which it is not halved
WIDEST = 6.0
NARROWEST = 1.1
# keeps times that increase apart, seconds: no kernel is that short
LEAST_APART_S = 1e-12


class Steps(NamedTuple):
    """Simulated steps; the last axis of each array is that of the steps."""

    attention_s: Floats
    """Seconds of attention in all layers."""
    rests_s: Floats
    """With each kind of attention that takes so long."""


class Rest(NamedTuple):
    """Lines over attention, one after the other: a value for each of their points."""

    tokens: Floats
    """New tokens of the step; increasing from line to line."""
    context: Floats
    """Tokens that its requests read; increasing on a line."""
    attention_s: Floats
    """Seconds of attention in all layers; increasing on a line."""
    rests_s: Floats
    """What the rest takes with each kind of attention; shape (kinds, points)."""

    def lines(self) -> "dict[float, Rest]":
        """Return each line by its tokens."""
        tokens, starts = np.unique(self.tokens, return_index=True)
        columns = (np.split(column, starts[1:], axis=-1) for column in self)
        return dict(zip(tokens.tolist(), itertools.starmap(Rest, zip(*columns, strict=True)), strict=True))


# of so many tokens, whose requests read so many
Simulate = Callable[[Floats, Floats], Steps]


def rest_of(simulate: Simulate, tokens: Floats, context: int) -> Rest:
    """Simulate the rest of steps of some numbers of tokens, and of those between where that is needed.

    `tokens` are whole numbers, increasing: those to begin with. `context` is the longest.
    """
    contexts = np.geomspace(1.0, context, 1 + math.ceil(math.log(context, WIDEST)))
    first = _halved(simulate, _simulated(simulate, [(each, contexts) for each in tokens.tolist()])).lines()
    lines = dict(first)
    gaps = list(itertools.pairwise(tokens.tolist()))
    while gaps := [(left, right) for left, right in gaps if right - left > 1.0]:
        middles = [(left + right) // 2.0 for left, right in gaps]
        # a line is about as bent as its neighbours
        contexts_of = [np.union1d(lines[left].context, lines[right].context) for left, right in gaps]
        lines |= _simulated(simulate, list(zip(middles, contexts_of, strict=True))).lines()
        gaps = [
            half
            for (left, right), middle in zip(gaps, middles, strict=True)
            if _bends(lines[left], lines[middle], lines[right])
            for half in ((left, middle), (middle, right))
        ]
    added = [lines[each] for each in sorted(lines.keys() - first)]
    lines = first | (_halved(simulate, _joined(added)).lines() if added else {})
    return _by_attention(_joined([lines[each] for each in sorted(lines)]))


def _simulated(simulate: Simulate, contexts_of: list[tuple[float, Floats]]) -> Rest:
    """Return the simulated lines of `tokens` tokens at contexts."""
    tokens = np.repeat([each for each, _ in contexts_of], [len(contexts) for _, contexts in contexts_of])
    context = np.concatenate([contexts for _, contexts in contexts_of])
    return Rest(tokens, context, *simulate(tokens, context))


def _joined(lines: list[Rest]) -> Rest:
    return Rest(*(np.concatenate(column, axis=-1) for column in zip(*lines, strict=True)))


def _halved(simulate: Simulate, lines: Rest) -> Rest:
    """Return the lines, halved where they bend."""
    # lower ends of intervals that may bend
    low = np.flatnonzero(lines.tokens[1:] == lines.tokens[:-1])
    while len(low := low[lines.context[low + 1] > NARROWEST * lines.context[low]]):
        tokens, context = lines.tokens[low], np.sqrt(lines.context[low] * lines.context[low + 1])
        middle = Rest(tokens, context, *simulate(tokens, context))
        span_s = lines.attention_s[low + 1] - lines.attention_s[low]
        up = np.clip((middle.attention_s - lines.attention_s[low]) / np.where(span_s == 0.0, 1.0, span_s), 0.0, 1.0)
        between_s = lines.rests_s[:, low] + up * (lines.rests_s[:, low + 1] - lines.rests_s[:, low])
        bent = _differ(between_s, middle.rests_s, middle.attention_s)
        lines = Rest(*(np.insert(column, low + 1, new, axis=-1) for column, new in zip(lines, middle, strict=True)))
        # every point before an interval has moved it up by one
        low = (low + np.arange(len(low)))[bent]
        low = np.sort(np.concatenate([low, low + 1]))
    return lines


def _by_attention(lines: Rest) -> Rest:
    # attention of a chunk can be shorter after a longer context, because tables hold whole prompts
    ordered = Rest(*(column[..., np.lexsort((lines.attention_s, lines.tokens))] for column in lines))
    return ordered._replace(attention_s=ordered.attention_s + LEAST_APART_S * np.arange(len(ordered.tokens)))


def _bends(left: Rest, middle: Rest, right: Rest) -> bool:
    """Whether a line differs from what those on its left and right say."""
    low_s, high_s = (_at(_by_attention(line), middle.attention_s) for line in (left, right))
    up = (middle.tokens[0] - left.tokens[0]) / (right.tokens[0] - left.tokens[0])
    return bool(_differ(low_s + up * (high_s - low_s), middle.rests_s, middle.attention_s).any())


def _at(line: Rest, attention_s: Floats) -> Floats:
    """Return the rests on a line at the seconds that attention takes."""
    point = np.interp(attention_s, line.attention_s, np.arange(len(line.tokens), dtype=np.float64))
    low = np.minimum(point.astype(int), len(line.tokens) - 2)
    low_s, high_s = line.rests_s[:, low], line.rests_s[:, low + 1]
    between_s: Floats = low_s + (point - low) * (high_s - low_s)
    return between_s


def _differ(guessed_s: Floats, rests_s: Floats, attention_s: Floats) -> NDArray[np.bool_]:
    """Return a mask of the points at which any rest is off by more than is allowed."""
    differ: NDArray[np.bool_] = np.any(np.abs(guessed_s - rests_s) > TOLERANCE * (rests_s + attention_s), axis=0)
    return differ
