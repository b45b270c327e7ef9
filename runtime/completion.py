"""One sequence's text as its tokens come: decoded, cut at stop strings, ended."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

# what bytes decode to before their character is whole
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Completion:
    """Grows token by token until it ends.

    Parameters
    ----------
    decode
        From tokens to text.
    ends
        Tokens that end it and are no part of it.
    stops
        Strings that end it and are no part of it.
    most
        Tokens at most.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], *, ends: Collection[int], stops: Sequence[str], most: int
    ) -> None:
        self._decode, self._ends, self._stops, self._most = decode, ends, stops, most
        # so far, the one that ends it included
        self.tokens: list[int] = []
        # what will not change any more
        self.text = ""
        # why it has ended; none: it has not
        self.reason: Literal["end", "stop", "length"] | None = None

    def push(self, token: int) -> str:
        """Take the next token; returns the text that is now certain."""
        self.tokens.append(token)
        ended = token in self._ends
        text = self._decode(self.tokens[:-1] if ended else self.tokens)
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.reason, text = "stop", text[: min(found)]
        elif ended:
            self.reason = "end"
        elif len(self.tokens) == self._most:
            self.reason = "length"
        else:
            text = self._certain(text)
        new = text[len(self.text) :]
        self.text += new
        return new

    def _certain(self, text: str) -> str:
        """Without an incomplete character, and without what a stop string may begin with."""
        text = text.rstrip(_INCOMPLETE)
        begun = [length for stop in self._stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
        return text[: len(text) - max(begun, default=0)]
