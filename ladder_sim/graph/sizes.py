"""Ops of any size from those of one token.

Which ops a forward pass runs, and what waits for what, does not depend on how many sequences there are nor on how long
they are. So one graph, of one token, serves every size: each op grows with the tokens, or with the sequences.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

from ladder_sim.graph.build import PassInputs
from ladder_sim.graph.ops import AttentionShape, CollectiveShape, Count, ElementwiseShape, GemmShape, Op, Phase, Shape
from ladder_sim.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """Sizes of one forward pass or of many: numbers, or arrays of one length."""

    batch: Count
    """Sequences."""
    q_len: Count
    """New tokens of each; as an array more than one everywhere, because a single one takes another kernel."""
    kv_len: Count
    """Tokens that attention reads, the new ones included."""
    every_logit: bool
    """Logits of every token, or of each sequence's last."""

    @classmethod
    def of(cls, inputs: PassInputs, phase: Phase, kv_len: int) -> Self:
        """Those of one pass; as `ladder_sim.graph.build.build`."""
        workload, static_cache = inputs.workload, inputs.stack.attention == "math"
        return cls(
            batch=workload.batch,
            q_len=workload.prompt if phase == "prefill" else 1,
            kv_len=workload.context if static_cache else kv_len,
            every_logit=inputs.stack.prefill_logits == "all",
        )

    def shape(self, op: Op) -> Shape:
        """The shape of an op of these sizes, given the op of a single token (`one_token`)."""
        shape = op.shape
        if isinstance(shape, AttentionShape):
            sizes: Any = {"batch": self.batch, "q_len": self.q_len, "kv_len": self.kv_len}
            return replace(shape, **sizes)
        per_sequence = op.kind in ("sample", "broadcast") or (
            op.kind in ("lm_head", "all_gather") and not self.every_logit
        )
        rows: Any = self.batch if per_sequence else self.batch * self.q_len
        if isinstance(shape, GemmShape):
            return replace(shape, m=rows)
        if isinstance(shape, ElementwiseShape):
            return ElementwiseShape(moved_bytes=rows * shape.moved_bytes)
        return CollectiveShape(message_bytes=rows * shape.message_bytes)


def one_token(workload: Workload) -> Workload:
    """The workload whose ops `Sizes.shape` takes, in both phases: one sequence of one token."""
    return replace(workload, batch=1, prompt=1, gen=1)
