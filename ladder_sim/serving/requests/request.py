"""A request as it arrives."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ladder_sim.errors import UsageError
from ladder_sim.specs.workload import MAX_TOKENS
from ladder_sim.values import real, whole

# a thousand years, in seconds: later, times of steps are lost in rounding
_MOST_S = 3.2e10


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it arrives.

    Raises
    ------
    UsageError
        A field is out of range.
    """

    arrival_s: float
    """Since the start."""
    prompt: int
    """Tokens of its prompt."""
    gen: int
    """Tokens of its answer."""
    prefix: Sequence[Hashable] = ()
    """Names of the first parts of its prompt: prompts that begin with the same names begin with the same tokens."""
    prefix_tokens: int = 0
    """Tokens of each of these parts."""

    def __post_init__(self) -> None:
        real(self.arrival_s, "a request's arrival_s", _MOST_S, zero=True)
        hint = "give a number of tokens"
        whole(self.prompt, "a request's prompt", 1, MAX_TOKENS, hint=hint)
        whole(self.gen, "a request's gen", 1, MAX_TOKENS, hint=hint)
        whole(self.prefix_tokens, "a request's prefix_tokens", 0, MAX_TOKENS, hint=hint)

    @property
    def first_part(self) -> tuple[int, Hashable]:
        """Name of the first part of its prompt among those of all requests: parts of other lengths are others."""
        return self.prefix_tokens, self.prefix[0]

    @property
    def shared_tokens(self) -> int:
        """Tokens at its beginning that others may have."""
        return min(self.prompt, len(self.prefix) * self.prefix_tokens)


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield requests as they come; a UsageError if one comes before the one in front of it."""
    before_s = 0.0
    for number, request in enumerate(requests, 1):
        if request.arrival_s < before_s:
            raise UsageError(
                f"request {number} comes {before_s - request.arrival_s:g} s before the one in front of it: must be in "
                "order of arrival",
                hint="sort them by arrival_s",
            )
        before_s = request.arrival_s
        yield request
