"""The requests to serve."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ladder_sim.errors import SpecError
from ladder_sim.specs.fields import Limits, check_fields

DType = Literal["bf16", "fp16", "fp8"]

# bytes per weight and activation element
DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp8": 1}

# how requests share the GPUs: they start together, and none joins until the last one has ended. Engines that serve
# batch continuously; their throughput and latency under load are another question
BATCHING = "static"

# beyond any published context, in tokens
_MAX_CONTEXT = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One static batch: every request has the same prompt and answer length."""

    # beyond any served batch
    batch: Annotated[int, Limits(1, 1_000_000, hint="requests served together, e.g. --batch 1")] = 1
    """Requests that start together."""
    prompt: Annotated[int, Limits(1, _MAX_CONTEXT, hint="tokens of each prompt, e.g. --prompt 1024")] = 1024
    """Tokens of each prompt."""
    gen: Annotated[int, Limits(1, _MAX_CONTEXT, hint="new tokens of each request, e.g. --gen 512")] = 512
    """New tokens of each request; prefill yields the first."""
    dtype: DType = "bf16"
    """Type of weights and activations."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.context > _MAX_CONTEXT:
            raise SpecError(
                f"prompt {self.prompt} + gen {self.gen} is {self.context} tokens: must be at most {_MAX_CONTEXT}",
                hint="use a shorter prompt or answer, e.g. --prompt 1024 --gen 512",
            )

    @property
    def context(self) -> int:
        """Tokens of one request once it is answered: prompt and answer."""
        return self.prompt + self.gen
