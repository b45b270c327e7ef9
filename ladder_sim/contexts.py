"""At which context lengths decode is simulated, and what each stands for.

Decode steps between two simulated contexts are interpolated linearly, and the weights are those of the sum over every
step. The sum differs from simulating every step by less than 0.1 % (tests/test_prediction.py).
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
COUNTS = ((2, 3), (8, 5))
# up to how many times the first context the last one is, and how many contexts then; the most is for all beyond
MOST_CONTEXTS = 9


def context_counts(prompt: Counts, gen: Counts) -> Counts:
    """Contexts to simulate for each request; none where prefill yields the only token."""
    first, last = prompt + 1, prompt + gen - 1
    counts = np.select([last <= growth * first for growth, _ in COUNTS], [count for _, count in COUNTS], MOST_CONTEXTS)
    found: Counts = np.where(gen == 1, 0, counts)
    return found


def weighted_contexts(prompt: Counts, gen: Counts, count: int) -> tuple[Counts, NDArray[np.float64]]:
    """Contexts of requests that all take `count` of them, and the decode steps each stands for.

    Returns
    -------
    contexts, weights : ndarray, shape (requests, count)
        In short answers the same context may come several times.
    """
    first, last = prompt + 1, prompt + gen - 1
    step = (last - first) / (count - 1)
    at = np.round(first[:, np.newaxis] + step[:, np.newaxis] * np.arange(count))
    width = np.diff(at, axis=1)
    weights = np.zeros(at.shape)
    weights[:, 0] = 1.0
    # steps left + 1 to right of each pair of neighbours: the sum of the hat functions over them
    weights[:, :-1] += (width - 1.0) / 2.0
    weights[:, 1:] += (width + 1.0) / 2.0
    return at.astype(np.int64), weights


@lru_cache(maxsize=1024)
def contexts(prompt: int, gen: int) -> tuple[tuple[int, float], ...]:
    """Contexts of one request in increasing order, each once, and the decode steps it stands for."""
    prompts, gens = np.array([prompt]), np.array([gen])
    count = int(context_counts(prompts, gens)[0])
    if not count:
        return ()
    merged: dict[int, float] = {}
    for at, weight in zip(*(values[0].tolist() for values in weighted_contexts(prompts, gens, count)), strict=True):
        merged[at] = merged.get(at, 0.0) + weight
    return tuple(merged.items())
