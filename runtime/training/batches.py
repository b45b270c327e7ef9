"""Which tokens a step learns from: by seed and step alone, so that a resumed run sees the same.

Shapes: B sequences, T tokens of a sequence and the one after them, P parts of a corpus.
"""

import torch
from torch import Tensor

from runtime.training.corpus import Corpus

# more than a run has: every seed and step has draws of its own
_STEPS = 2**32


class Batches:
    """Sequences of a corpus."""

    def __init__(self, corpus: Corpus, context: int, seed: int) -> None:
        self._tokens = torch.from_file(str(corpus.file), size=corpus.ends[-1], dtype=torch.int32)
        self._corpus, self._length, self._seed = corpus, context + 1, seed

    def training(self, step: int, batch: int) -> Tensor:
        """Those of a step, B x T, each from a random place; sources count by their sizes."""
        draws = torch.Generator().manual_seed((self._seed * _STEPS + step) % 2**63)
        return self._cut(self._corpus.training, torch.rand(batch, generator=draws, dtype=torch.float64))

    def held_out(self, windows: int) -> Tensor:
        """The same ones in every run, at even distances."""
        return self._cut(self._corpus.held_out, (torch.arange(windows) + 0.5) / windows)

    def _cut(self, parts: tuple[tuple[int, int], ...], share_B: Tensor) -> Tensor:
        """Sequences, B x T, that begin after this share of the places where one can."""
        first_P, stop_P = torch.tensor(parts).unbind(1)
        places_P = stop_P - first_P - self._length + 1
        ends_P = places_P.cumsum(0)
        place_B = (share_B.double() * ends_P[-1]).long()
        part_B = torch.searchsorted(ends_P, place_B, right=True)
        at_B = first_P[part_B] + place_B - (ends_P - places_P)[part_B]
        return self._tokens[at_B.unsqueeze(1) + torch.arange(self._length)].long()
