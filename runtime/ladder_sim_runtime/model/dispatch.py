"""Tokens on their way to the experts of other ranks and back, where groups of ranks have requests of their own.

Attention is then replicated: every group attends to its own requests, and the experts of a layer are distributed over
the ranks of all groups. A token has to reach those of its experts (dispatch), and what they add to it has to come back
(combine). All-gather: every rank gets every group's tokens, and sums over the ranks are scattered back (vLLM's
``allgather_reducescatter``). All-to-all: a rank gets a copy of a token for each of its experts that the token chose.

Shapes: M tokens of this group, A those of all groups, X copies on their way, D hidden, k experts of a token, R ranks.
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from ladder_sim_runtime.comm.base import Communicator, Handle
from ladder_sim_runtime.model import kernels

# hidden state of tokens, weights and numbers of their experts
Routed = tuple[Tensor, Tensor, Tensor]
# from tokens, weights and numbers of their experts to what this rank's experts add to each token
RunExperts = Callable[[Tensor, Tensor, Tensor], Tensor]


class Arriving:
    """A block's output, parts of which a `handle` still brings from other ranks.

    `finish` makes the output of what has arrived, `own` this rank's part of it. What `shared` experts put out is added
    to the output, and need not wait for it.
    """

    def __init__(
        self,
        handle: Handle,
        finish: Callable[[], Tensor],
        own: Callable[[], Tensor],
        shared: "Tensor | Arriving | None" = None,
    ) -> None:
        self._handle, self._finish, self._make_own = handle, finish, own
        self._own: Tensor | None = None
        self.shared = shared

    def then(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return an output that is what `change` makes of this one, once it has arrived."""
        return type(self)(self._handle, lambda: change(self._finish()), lambda: change(self.own()))

    def own(self) -> Tensor:
        """Return this rank's part of the output, without that of shared experts."""
        if self._own is None:
            self._own = self._make_own()
        return self._own

    def take_shared(self) -> list[Tensor]:
        """Return the output of shared experts, if any, which is not added to this output then."""
        taken, self.shared = self.shared, None
        return [] if taken is None else [arrived(taken)]

    def wait(self) -> Tensor:
        """Wait for the parts, and return the output."""
        self._handle.wait()
        output = self._finish()
        for shared in self.take_shared():
            output = kernels.add(output, shared)
        return output


def arrived(output: Tensor | Arriving) -> Tensor:
    """Return an output, as soon as all of it has arrived."""
    return output.wait() if isinstance(output, Arriving) else output


def gathered(exchange: Communicator, tokens: Routed, run_experts: RunExperts) -> Arriving:
    """Dispatch by all-gather, combine by reduce-scatter."""
    n_AD, weight_Ak, chosen_Ak = exchange.gather_all(*tokens)
    sum_AD = run_experts(n_AD, weight_Ak, chosen_Ak)
    sum_MD, handle = exchange.scatter_sum(sum_AD)
    first = exchange.rank * len(sum_MD)
    return Arriving(handle, lambda: sum_MD, lambda: sum_AD[first : first + len(sum_MD)])


def exchanged(exchange: Communicator, tokens: Routed, run_experts: RunExperts, held: Sequence[range]) -> Arriving:
    """Dispatch and combine by all-to-alls; `held` are the experts of each rank of the exchange."""
    n_MD, weight_Mk, chosen_Mk = tokens
    copies_XD, expert_X1, choice_X, sent_R = kernels.copies_by_rank(n_MD, chosen_Mk, held)
    each = [1] * exchange.size
    received_R, known = exchange.swap_rows(sent_R, each, each)
    known.wait()
    sent, received = sent_R.tolist(), received_R.tolist()
    (n_XD, arriving), (own_X1, numbered) = (exchange.swap_rows(x, sent, received) for x in (copies_XD, expert_X1))
    arriving.wait()
    numbered.wait()
    # weighted by the rank that they return to
    output_XD = run_experts(n_XD, torch.ones_like(own_X1, dtype=weight_Mk.dtype), own_X1)
    back_XD, handle = exchange.swap_rows(output_XD, received, sent)
    # what this rank sends to itself
    out, back = (slice(sum(x[: exchange.rank]), sum(x[: exchange.rank + 1])) for x in (received, sent))
    return Arriving(
        handle,
        lambda: kernels.sum_copies(back_XD, choice_X, weight_Mk),
        lambda: kernels.sum_copies(output_XD[out], choice_X[back], weight_Mk),
    )
