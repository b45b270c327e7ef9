"""Requests in flight as passes see them: how many decode, and how much of prompts shares a step with them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ladder_sim.closed_loop.engine import FrontEnd
from ladder_sim.costs.memory import running_requests
from ladder_sim.des.shared import maximum, minimum, where
from ladder_sim.kernels import Phase, Sizes, Stack
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec

# tokens of the shortest chunk of a prompt that is simulated: a step takes hardly longer for fewer
_LEAST_CHUNK = 16
# a full step of more prompts than this is far from a step of one, whose GEMMs are bound by memory: one between them is
# simulated too
_MANY = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Requests in flight: numbers, or arrays of one value per configuration.

    In a pipeline as many steps run at a time as there are stages, each with its part of the requests: a lane.
    """

    concurrency: Any
    """Requests of a group of ranks that share attention."""
    prompt: Any
    """Mean tokens of a prompt."""
    gen: Any
    """Mean tokens of an answer."""
    kv_slots: Any
    """Requests whose KV cache fits."""
    slots: Any
    """Requests that can run at the same time: those whose cache fits, or fewer where their tokens fill steps."""
    step_tokens: Any
    """Most tokens of one step."""
    mixed_steps: bool
    """Whether prompts share a step with requests that decode; else they go first, in steps of their own."""
    stages: int
    """Pipeline stages."""
    tp: int
    """Ranks of a stage."""

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        *,
        concurrency: Any,
        prompt: Any,
        gen: Any,
        step_tokens: Any = 0,
        step_requests: Any = 0,
    ) -> "Requests":
        """Return the requests of one group of ranks that share attention; limits of 0 are the scenario's."""
        budget = step_tokens if np.any(step_tokens) else scenario.step_tokens
        # a user may ask what happens if it did fit
        slots = kv_slots = maximum(running_requests(scenario, prompt, gen), 1.0)
        if np.any(step_requests):
            slots = kv_slots = minimum(kv_slots, maximum(step_requests, 1.0))
        if scenario.stack.mixed_steps:
            # beyond it requests have more tokens than their steps take in
            steps = maximum(prompt / budget, 1.0) + gen - 1
            slots = minimum(slots, budget * steps / (prompt + gen - 1))
        return cls(
            concurrency=scenario.plan.group_requests(concurrency),
            prompt=prompt,
            gen=gen,
            kv_slots=kv_slots,
            slots=slots,
            step_tokens=budget,
            mixed_steps=scenario.stack.mixed_steps,
            stages=scenario.plan.pp,
            tp=scenario.plan.tp,
        )

    @property
    def lanes(self) -> Any:
        """Number of steps that run at a time, in different stages."""
        return minimum(self.stages, minimum(self.concurrency, self.slots))

    @property
    def decoding(self) -> dict[str, Any]:
        """Requests of a lane that decode in the steps that are simulated, by the names of `passes`."""
        most = minimum(self.concurrency, self.slots) / self.lanes
        return {"one": most / most, "few": maximum(most / 2.0, 1.0), "most": most}

    @property
    def chunk(self) -> Any:
        """Tokens of a prompt in one step."""
        return minimum(self.prompt, self.step_tokens)

    @property
    def together(self) -> Any:
        """Prompts that fit one step."""
        return maximum(self.step_tokens / self.prompt, 1.0)

    @property
    def tokens(self) -> dict[str, Any]:
        """Tokens of prompts in the steps that are simulated, by the names of `passes`."""
        several = {"several": np.sqrt(self.chunk * self._full)} if np.any(self.many) else {}
        return {"least": minimum(self.chunk, _LEAST_CHUNK), "busy": self.chunk, **several, "full": self._full}

    @property
    def _full(self) -> Any:
        """Tokens of prompts in a step that holds as many as fit."""
        most = minimum(self.decoding["most"], self.step_tokens - 1) if self.mixed_steps else 0
        prompts = maximum(self.concurrency / self.lanes, 1.0) * self.prompt
        return maximum(minimum(prompts, self.step_tokens - most), self.chunk)

    @property
    def many(self) -> Any:
        """Whether a step holds so many prompts that one with several of them is simulated."""
        return self._full > _MANY * self.chunk

    @property
    def paused(self) -> str:
        """Name of the step with as many prompts as "idle", which runs while prompts take none of the time."""
        return "several" if np.any(self.many) else "busy"

    def front_end(self, stack: Stack) -> FrontEnd:
        """Return what the stack's front end adds to the first token of a prompt of this length."""
        return FrontEnd(stack.frontend_s, stack.frontend_steps, stack.frontend_token_s * self.prompt)

    @property
    def alone(self) -> Any:
        """Whether each request has a lane of its own: its prompt shares steps with nobody."""
        return self.concurrency <= self.lanes

    @property
    def further_tokens(self) -> bool:
        """Whether answers have more than one token: all, or none."""
        return bool(np.all(self.gen > 1))

    def passes(self, stack: StackSpec) -> Mapping[str, tuple[Phase, Sizes]]:
        """Return the phase and sizes of each pass that is simulated of a stack, by name.

        one, few, most: decode of one request, and of half and all of a lane's. least, busy, several, full: steps with a
        few tokens of a prompt, a single prompt, several, and as many as fit, while prompts take all of the time; idle:
        that of `paused` while they take none. Where prompts share steps, most of the requests decode next to them.
        """
        if not self.further_tokens:
            # a step full of prompts
            in_step: Any = minimum(self.concurrency, self.together)
            sizes = {"batch": in_step, "prompt": self.prompt, "gen": self.gen}
            return {"prefill": ("prefill", Sizes.of(stack, "prefill", self.prompt, **sizes))}
        tokens = self.tokens
        return {
            **{name: self._decode(stack, number) for name, number in self.decoding.items()},
            "idle": self.with_prompts(stack, tokens[self.paused] / self.chunk, self.chunk, 0.0),
            "least": self.with_prompts(stack, 1, tokens["least"], 1.0),
            **{
                name: self.with_prompts(stack, number / self.chunk, self.chunk, 1.0)
                for name, number in tokens.items()
                if name != "least"
            },
        }

    @property
    def _context(self) -> Any:
        """Tokens that a request reads when half of its answer is there."""
        return self.prompt + self.gen / 2.0

    def _decode(self, stack: StackSpec, batch: Any) -> tuple[Phase, Sizes]:
        return "decode", Sizes.of(stack, "decode", self._context, batch=batch, prompt=self.prompt, gen=self.gen)

    def with_prompts(self, stack: StackSpec, prompts: Any, chunk: Any, duty: float) -> tuple[Phase, Sizes]:
        """Return the phase and sizes of a step with so many prompts, each of a chunk, as those of `passes`."""
        # a graph of a step with prompts has at least one request that decodes
        batch = self.decoding["most" if self.mixed_steps else "one"]
        if np.all(self.prompt == 1):
            # a prompt of one token is one more request that decodes
            return self._decode(stack, batch + prompts)
        if np.all(self.alone):
            whole = Sizes.of(stack, "prefill", (self.prompt + chunk) / 2, batch=prompts, prompt=chunk, gen=self.gen)
            read = self.prompt + (self.gen if stack.static_cache else 0)
            return "prefill", replace(whole, duty=duty, whole_kv_len=where(chunk < self.prompt, read, 0))
        # a prompt alone has as many rows as tokens, one of which the graph of such a step takes for one that decodes
        chunk = maximum(chunk - (batch == 1) / prompts, 1)
        sizes = {"prompts": prompts, "chunk": chunk, "prompt": self.prompt, "gen": self.gen}
        return "mixed", Sizes.mixed(stack, self._context, batch=batch, duty=duty, **sizes)
