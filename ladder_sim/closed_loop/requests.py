"""Requests in flight as passes see them: how many decode, and how much of prompts shares a step with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder_sim.closed_loop.cycle import FrontEnd
from ladder_sim.costs.hardware import Stack
from ladder_sim.costs.memory import running_requests
from ladder_sim.des.shared import maximum, minimum
from ladder_sim.graph.ops import Phase
from ladder_sim.graph.sizes import Sizes
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec

# further tokens up to which answers are served step by step: of more, it matters little which prompt shares which step
# (tests/laws/test_in_flight.py)
FEW_STEPS = 100
# tokens of the shortest chunk of a prompt that is simulated: a step takes hardly longer for fewer
_LEAST_CHUNK = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Requests in flight: numbers, or arrays of one value per configuration."""

    concurrency: Any
    prompt: Any
    gen: Any
    kv_slots: Any
    """Requests whose KV cache fits."""
    slots: Any
    """Requests that can run at the same time: those, or fewer where their tokens fill steps."""
    step_tokens: int
    """Most tokens of one step."""
    mixed_steps: bool
    """Whether prompts share a step with requests that decode; else they go first, in steps of their own."""
    chunk: Any
    """Tokens of a prompt in one step."""
    together: Any
    """Prompts that fit one step."""
    stages: int
    """Pipeline stages."""
    tp: int
    """Ranks of a stage."""

    @classmethod
    def of(cls, scenario: Scenario, *, concurrency: Any, prompt: Any, gen: Any) -> "Requests":
        """Return the requests of one group of ranks that share attention."""
        budget = scenario.step_tokens
        chunk = minimum(prompt, budget)
        # a user may ask what happens if it did fit
        slots = kv_slots = maximum(running_requests(scenario, prompt, gen), 1.0)
        if scenario.stack.mixed_steps:
            # beyond it requests have more tokens than their steps take in
            slots = minimum(slots, budget * (prompt / chunk + gen - 1) / (prompt + gen - 1))
        return cls(
            concurrency=scenario.plan.group_requests(concurrency),
            prompt=prompt,
            gen=gen,
            kv_slots=kv_slots,
            slots=slots,
            step_tokens=budget,
            mixed_steps=scenario.stack.mixed_steps,
            chunk=chunk,
            together=maximum(budget / prompt, 1.0),
            stages=scenario.plan.pp,
            tp=scenario.plan.tp,
        )

    @property
    def most(self) -> Any:
        """Requests that decode, at most."""
        return minimum(self.concurrency, self.slots)

    @property
    def few(self) -> Any:
        """A smaller number, at which steps are simulated too."""
        return maximum(self.most / 2.0, 1.0)

    def at_once(self, running: Any) -> Any:
        """Return the number of steps that run at a time, in different stages, each with a part of the requests."""
        return minimum(self.stages, running)

    def front_end(self, stack: Stack) -> FrontEnd:
        """Return what the stack's front end adds to the first token of a prompt of this length."""
        return FrontEnd(stack.frontend_s, stack.frontend_steps, stack.frontend_token_s * self.prompt)

    @property
    def prompt_steps(self) -> Any:
        """Steps that the tokens of a prompt fill."""
        return self.prompt / self.step_tokens

    @property
    def filled(self) -> Any:
        """Steps that all tokens of a request fill, of those that run at a time."""
        return (self.prompt + self.gen - 1) / self.step_tokens / self.at_once(self.most)

    @property
    def chunks(self) -> Any:
        """Steps of one prompt."""
        return self.prompt / self.chunk

    @property
    def prompts(self) -> Any:
        """Prompts in a step that has any: more than one where they come faster than steps, as many as fit."""
        coming = self.most * self.chunks / (self.chunks + self.gen - 1)
        return maximum(minimum(coming, self.step_tokens / self.chunk), 1.0)

    @property
    def steps_per_prompt(self) -> Any:
        """Steps with prompts, over prompts."""
        return self.chunks / self.prompts

    @property
    def further_tokens(self) -> bool:
        """Whether answers have more than one token: all, or none."""
        return bool(np.all(self.gen > 1))

    @property
    def step_by_step(self) -> bool:
        """Whether they are served one step after the other: all, or none."""
        return bool(self.stages == 1 and np.all((self.gen > 1) & (self.gen - 1 <= FEW_STEPS) & (self.concurrency > 1)))

    @property
    def tokens(self) -> dict[str, Any]:
        """Tokens of prompts in steps that are simulated to serve step by step, by the names of `passes`."""
        room = self.step_tokens - (minimum(self.most, self.step_tokens - 1) if self.mixed_steps else 0)
        return {
            "least": minimum(self.chunk, _LEAST_CHUNK),
            "single": self.chunk,
            "full": maximum(minimum(self.concurrency * self.prompt, room), self.chunk),
        }

    def passes(self, stack: StackSpec) -> Mapping[str, tuple[Phase, Sizes]]:
        """Return the phase and sizes of each pass that is simulated of a stack, by name.

        few, most: decode of few requests, and of most. idle, busy: steps with prompts that take none of the time, or
        all of it, with most of the requests next to them where they share steps. Of requests that are served step by
        step: one, which decodes alone, and steps with the least of a prompt, a single one, and as many as fit.
        """
        if not self.further_tokens:
            # a step full of prompts
            in_step: Any = minimum(self.concurrency, self.together)
            sizes = {"batch": in_step, "prompt": self.prompt, "gen": self.gen}
            return {"prefill": ("prefill", Sizes.of(stack, "prefill", self.prompt, **sizes))}
        most = self.most / self.at_once(self.most)
        passes = {
            "few": self._decode(stack, self.few / self.at_once(self.few)),
            "most": self._decode(stack, most),
            "idle": self._with_prompts(stack, most, self.prompts, self.chunk, 0.0),
            "busy": self._with_prompts(stack, most, self.prompts, self.chunk, 1.0),
        }
        if self.step_by_step:
            one, tokens = self.most / self.most, self.tokens
            # a graph of such a step has at least one request that decodes
            beside = most if self.mixed_steps else one
            passes |= {
                "one": self._decode(stack, one),
                "least": self._with_prompts(stack, beside, 1, tokens["least"], 1.0),
                "single": self._with_prompts(stack, beside, 1, self.chunk, 1.0),
                "full": self._with_prompts(stack, beside, tokens["full"] / self.chunk, self.chunk, 1.0),
            }
        return passes

    @property
    def _context(self) -> Any:
        """Tokens that a request reads when half of its answer is there."""
        return self.prompt + self.gen / 2.0

    def _decode(self, stack: StackSpec, batch: Any) -> tuple[Phase, Sizes]:
        return "decode", Sizes.of(stack, "decode", self._context, batch=batch, prompt=self.prompt, gen=self.gen)

    def _with_prompts(self, stack: StackSpec, batch: Any, prompts: Any, chunk: Any, duty: float) -> tuple[Phase, Sizes]:
        if np.all(self.prompt == 1):
            # a prompt of one token is one more request that decodes
            return self._decode(stack, batch + prompts)
        # a prompt alone has as many rows as tokens, one of which the graph of such a step takes for one that decodes
        chunk = maximum(chunk - (batch == 1) / prompts, 1)
        sizes = {"prompts": prompts, "chunk": chunk, "prompt": self.prompt, "gen": self.gen}
        return "mixed", Sizes.mixed(stack, self._context, batch=batch, duty=duty, **sizes)
