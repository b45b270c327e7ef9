"""Parts of a pass take turns: while one waits for a collective, another computes (technique `token-split`).

Sequences are spread over the parts; a lone prompt is cut, and each part attends to what those before it left in the
cache. Shapes: B batch, T new tokens.

References
----------
TokenWeave, arXiv 2505.11329; dual-batch overlap (vLLM 0.32.0, v1/worker/ubatch_utils.py); NanoFlow, arXiv 2408.12757.
"""

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import TypeVar

# tokens from which vLLM splits a step that only decodes, and any other (0.32.0, config/parallel.py, dbo_*_threshold)
DECODE_TOKENS, PROMPT_TOKENS = 32, 512
# tokens of which a prompt's parts are multiples, if each has as many: rows of a tile of large GEMMs
TILE = 128

T = TypeVar("T")


def cuts(batch: int, tokens: int, parts: int) -> list[tuple[slice, slice]]:
    """Return the sequences and new tokens of each part of a pass; an engine may leave the pass whole.

    Examples
    --------
    >>> cuts(1, 600, 2)
    [(slice(0, 1, None), slice(0, 256, None)), (slice(0, 1, None), slice(256, 600, None))]
    >>> cuts(33, 1, 2)
    [(slice(0, 17, None), slice(0, 1, None)), (slice(17, 33, None), slice(0, 1, None))]
    """
    if batch * tokens < (DECODE_TOKENS if tokens == 1 else PROMPT_TOKENS):
        parts = 1
    if batch > 1:
        parts = min(parts, batch)
        starts = [-(-batch * part // parts) for part in range(parts + 1)]
        return [(slice(*part), slice(0, tokens)) for part in pairwise(starts)]
    unit = TILE if tokens >= parts * TILE else 1
    starts = [*(tokens * part // (parts * unit) * unit for part in range(parts)), tokens]
    return [(slice(0, 1), slice(*part)) for part in pairwise(starts)]


def in_turns(passes: Sequence[Generator[None, None, T]]) -> list[T]:
    """Run passes that yield wherever another may run, in turns; returns what they return. All yield as often."""
    results: list[T] = []
    while not results:
        for each in passes:
            try:
                next(each)
            except StopIteration as end:
                results.append(end.value)
    return results
