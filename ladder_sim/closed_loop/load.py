"""What the times of requests in flight are made of, as an answer says it."""

from dataclasses import dataclass
from typing import Self

from ladder_sim.closed_loop.loop import ServedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the times of requests in flight are made of; seconds."""

    tokens_per_s_per_gpu: float
    """Throughput of the group over its GPUs."""
    requests_decoding: float
    """Mean number of requests that are past their first token."""
    requests_running: float
    """Mean number of those that do not wait: they decode, or their prompt is in the step."""
    slots: float
    """Most requests that can run: those whose KV cache fits, or that a step's tokens leave room for."""
    decode_step_s: float
    """A step that decodes them and holds no prompt, CPU time included."""
    prompts_per_token_s: float
    """What the prompts of other requests add to the time per token."""
    prompt_s: float
    """What one prompt adds to the steps that hold it."""
    prompt_steps: float
    """Share of the steps that hold a prompt."""
    front_end_s: float
    """What the server takes of the time to first token outside of the engine."""
    ttft_p50_s: float
    """Median time to first token: first requests of all clients, which come at once, lengthen the mean."""

    @classmethod
    def of(cls, request: ServedRequest, tokens_per_s_per_gpu: float) -> Self:
        """Return what the times of a request in flight are made of."""
        served = request.served
        return cls(
            tokens_per_s_per_gpu=tokens_per_s_per_gpu,
            requests_decoding=float(served.decoding),
            requests_running=float(served.running),
            slots=float(request.slots),
            decode_step_s=float(served.decode_s),
            prompts_per_token_s=float(served.tpot_s - served.decode_s),
            prompt_s=float(served.prompt_s),
            prompt_steps=float(served.prompt_steps),
            front_end_s=float(request.front_end_s),
            ttft_p50_s=float(served.ttft_p50_s),
        )
