"""What a step takes beyond attention and logits, by its tokens and its attention: an adaptive grid.

Where nothing overlaps, the rest is the same for every attention. Where a collective hides behind attention, it is less
for a longer one, until all is hidden; where the CPU launches kernel after kernel, likewise. So each number of tokens
has a line over attention of its own, halved where it bends; and numbers of tokens are added wherever the lines of
their neighbours do not say what theirs is, down to the very number at which an engine takes another kernel.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ladder_sim.des.shared import Floats

# lines are refined until simulated steps differ by no more, as a fraction of the step: a fifth of what is promised
TOLERANCE = 0.008
# contexts at which a line is simulated first, and the ratio of neighbours below which it is not halved
FIRST_CONTEXTS = 5
NARROWEST = 1.1
# keeps times that increase apart, seconds: no kernel is that short
LEAST_APART_S = 1e-12


class Steps(NamedTuple):
    """Simulated steps; the last axis of each array is that of the steps."""

    attention_s: Floats
    """Of all layers."""
    rests_s: Floats
    """With prompts that take none of the time, and all of it."""


class Rest(NamedTuple):
    """Lines over attention, one after the other: a value for each of their points."""

    tokens: Floats
    """New tokens of the step; increasing from line to line."""
    attention_s: Floats
    """Of all layers; increasing on a line."""
    rests_s: Floats
    """What the rest takes, with prompts that take none of the time, and all of it; shape (2, points)."""

    def lines(self) -> "dict[float, Rest]":
        """Each line by its tokens."""
        tokens, starts = np.unique(self.tokens, return_index=True)
        columns = (np.split(column, starts[1:], axis=-1) for column in self)
        return dict(zip(tokens.tolist(), itertools.starmap(Rest, zip(*columns, strict=True)), strict=True))


# of so many tokens, whose requests read so many
Simulate = Callable[[Floats, Floats], Steps]


def rest_of(simulate: Simulate, tokens: Floats, context: int) -> Rest:
    """Simulate the rest of steps of some numbers of tokens, and of those between where that is needed.

    Parameters
    ----------
    simulate
        Steps of so many tokens, whose requests read so many.
    tokens
        Whole numbers, increasing: those to begin with.
    context
        The longest.
    """
    lines = _rest(simulate, tokens, context).lines()
    left, right = tokens[:-1], tokens[1:]
    while True:
        apart = right - left > 1.0
        left, right = left[apart], right[apart]
        if not len(left):
            return Rest(*(np.concatenate(column, axis=-1) for column in zip(*_sorted(lines), strict=True)))
        middle = np.floor((left + right) / 2.0)
        lines |= _rest(simulate, middle, context).lines()
        thirds = zip(left.tolist(), middle.tolist(), right.tolist(), strict=True)
        bent = np.array([_bends(*(lines[tokens] for tokens in three)) for three in thirds])
        left, right = np.concatenate([[left, middle], [middle, right]], axis=1)[:, np.tile(bent, 2)]


def _sorted(lines: dict[float, Rest]) -> list[Rest]:
    return [lines[tokens] for tokens in sorted(lines)]


def _rest(simulate: Simulate, tokens: Floats, context: int) -> Rest:
    """One line for each number of tokens, halved where it bends."""
    contexts = np.geomspace(1.0, context, FIRST_CONTEXTS)
    at_tokens, at_context = (grid.ravel() for grid in np.meshgrid(tokens, contexts, indexing="ij"))
    attention_s, rests_s = simulate(at_tokens, at_context)
    # lower ends of intervals that may bend
    low = np.flatnonzero(at_tokens[1:] == at_tokens[:-1])
    while len(low):
        middle = at_tokens[low], np.sqrt(at_context[low] * at_context[low + 1])
        own_s, own_rests_s = simulate(*middle)
        span_s = attention_s[low + 1] - attention_s[low]
        up = np.clip((own_s - attention_s[low]) / np.where(span_s == 0.0, 1.0, span_s), 0.0, 1.0)
        between_s = rests_s[:, low] + up * (rests_s[:, low + 1] - rests_s[:, low])
        bent = (np.abs(between_s - own_rests_s) > TOLERANCE * (own_rests_s + own_s)).any(axis=0)
        bent &= at_context[low + 1] > NARROWEST * at_context[low]
        at_tokens, at_context, attention_s, rests_s = (
            np.insert(column, low + 1, new, axis=-1)
            for column, new in (
                (at_tokens, middle[0]),
                (at_context, middle[1]),
                (attention_s, own_s),
                (rests_s, own_rests_s),
            )
        )
        # every point before an interval has moved it up by one
        low = (low + np.arange(len(low)))[bent]
        low = np.sort(np.concatenate([low, low + 1]))
    # attention of a chunk can be shorter after a longer context, because tables hold whole prompts
    order = np.lexsort((attention_s, at_tokens))
    apart_s = LEAST_APART_S * np.arange(len(order))
    return Rest(at_tokens[order], attention_s[order] + apart_s, rests_s[:, order])


def _bends(left: Rest, middle: Rest, right: Rest) -> bool:
    """Whether a line differs from what those on its left and right say."""
    at_s = middle.attention_s
    up = (middle.tokens[0] - left.tokens[0]) / (right.tokens[0] - left.tokens[0])
    for own_s, *others_s in zip(middle.rests_s, left.rests_s, right.rests_s, strict=True):
        low_s, high_s = (
            np.interp(at_s, line.attention_s, rest_s) for line, rest_s in zip((left, right), others_s, strict=True)
        )
        if np.any(np.abs(low_s + up * (high_s - low_s) - own_s) > TOLERANCE * (own_s + at_s)):
            return True
    return False
