"""Speculative decoding: what drafted tokens bring."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.errors import UsageError

_WAY_OUT = "3:0.7 drafts 3 tokens, each accepted in 7 of 10 steps that accept those before it; 0.8/0.6/0.4 names the "
_WAY_OUT += "rate of each position, as vLLM logs it; a third part is the drafter's time: 3:0.7:0.02, 0.8/0.6/0.4:0.02"


class Path(NamedTuple):
    """How the answer of a request grows; arrays of a value before each step that it takes part in."""

    steps: int
    """Steps that bring tokens; a scheduler that does not wait for the last of them may add one."""
    beyond: NDArray[np.int64]
    """Tokens that it has by then, less those that it had with one a step."""
    known: NDArray[np.int64]
    """Tokens of the steps whose result the scheduler has by then."""
    room: NDArray[np.int64]
    """Tokens after its prompt for which the step needs the KV cache: all drafts that may be accepted."""

    @property
    def surplus(self) -> bool:
        """It takes part in a step after its last token."""
        return len(self.beyond) > self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A drafter that guesses the next tokens of a request, which the model verifies in one step."""

    acceptance: tuple[float, ...]
    """Share of steps that accept a drafted token and all before it, for each token: the "per-position acceptance rate"
    of vLLM's log (v1/spec_decode/metrics.py)."""
    cost: float | None = None
    """Time of one pass of the drafter as a share of the model's; 0: an n-gram lookup. None: one layer and the LM head,
    as an MTP module (arXiv 2412.19437, section 2.2) or an EAGLE head (arXiv 2401.15077, section 4) has them."""
    seed: int = 0
    """Seed of the random numbers."""

    def __post_init__(self) -> None:
        rates = (1.0, *self.acceptance, 0.0)
        if not 1 <= self.drafts <= 64:
            raise UsageError(f"{self.drafts} drafted tokens: must be 1 to 64", hint=_WAY_OUT)
        if any(not 0.0 <= after <= before for before, after in itertools.pairwise(rates)):
            shown = ", ".join(f"{rate:g}" for rate in self.acceptance)
            raise UsageError(f"acceptance rates {shown}: must be 0 to 1, none above that before it", hint=_WAY_OUT)
        if self.cost is not None and not 0.0 <= self.cost <= 10.0:
            raise UsageError(f"a drafter's pass of {self.cost:g} of the model's: must be 0 to 10", hint=_WAY_OUT)

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Self:
        """Read it as the command line takes it.

        Examples
        --------
        >>> Speculation.parse("3:0.7").acceptance
        (0.7, 0.48999999999999994, 0.3429999999999999)
        >>> Speculation.parse("0.8/0.6:0.02").cost
        0.02
        """
        first, *others = text.split(":")
        try:
            if "/" in first or "." in first:
                acceptance = tuple(float(rate) for rate in first.split("/"))
            else:
                rate = float(others.pop(0))
                acceptance = tuple(rate ** (position + 1) for position in range(min(int(first), 65)))
            cost = float(others.pop(0)) if others else None
            if others:
                raise ValueError
        except (ValueError, IndexError):
            raise UsageError(
                f"speculation '{text}': not drafted tokens and how often they are accepted", hint=_WAY_OUT
            ) from None
        return cls(acceptance=acceptance, cost=cost, seed=seed)

    @property
    def drafts(self) -> int:
        """Tokens drafted for a step."""
        return len(self.acceptance)

    @property
    def lookahead(self) -> int:
        """Tokens for whose KV cache a drafter with layers keeps room; an n-gram lookup has none."""
        return self.drafts if self.cost else 0

    def spare(self, *, ahead: bool) -> int:
        """Return the most tokens for which a step needs the KV cache beyond those of the whole answer."""
        return self.lookahead + self.drafts + (self.drafts + 1 if ahead else 0)

    def gains(self, number: int, count: int) -> list[int]:
        """Return the tokens that a step brings request `number` after each of its tokens, equal in every simulation."""
        drawn = np.random.default_rng((self.seed, number)).random(count)
        accepted: list[int] = (drawn[:, None] < np.array(self.acceptance)).sum(axis=1).tolist()
        return [1 + tokens for tokens in accepted]

    def path(self, gains: list[int], produced: int, *, ahead: bool, padding: int = 0) -> Path:
        """Return the steps of a request whose prompt is done.

        Its prompt brought one token after the `produced` ones before.

        Parameters
        ----------
        gains
            As many as its answer has tokens.
        produced
            Tokens of its answer that were part of its prompt.
        ahead
            A step is decided on before the result of the one before is known. So a request whose answer may be complete
            by then takes part once more in vain, unless that is certain even if all drafts are rejected (vLLM 0.32.0,
            v1/core/sched/scheduler.py).
        padding
            Rows of the last token of its prompt beyond one, which count as accepted until that step's result is known.
        """
        further, had, rows = len(gains) - produced - 1, [0], 1 + self.drafts
        while had[-1] < further:
            had.append(had[-1] + gains[produced + had[-1]])
        steps = len(had) - 1
        if not ahead or further - had[steps - 1] == 1:
            had.pop()
        tokens = np.array(had)
        known = np.concatenate([tokens[:1], tokens[:-1]]) if ahead else tokens
        room = known + rows + self.lookahead
        if ahead:
            # those of the step that runs
            room[1:] += rows
            room[:1] += padding
        return Path(steps, tokens - np.arange(len(had)), known, room)
