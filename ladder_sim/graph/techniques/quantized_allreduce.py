"""All-reduces of fewer bits: quantised before each of two shots, and read back after it. Lossy.

References
----------
Flash Communication, arXiv 2412.04964; QuickReduce in vLLM 0.32.0 (quick_all_reduce.py) and SGLang.
"""

from typing import Any

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import PassInputs, ResidualOp
from ladder_sim.graph.techniques.rewriting import Step, layout_of, steps_of
from ladder_sim.kernels import STATE_BYTES, Count

# bytes of a message from which it pays: vLLM's smallest are 1 to 16 MiB, by GPUs and bits (0.32.0,
# quick_all_reduce.py, _QR_MIN_SIZE, fp16)
LEAST_BYTES = 2.0 * 2**20


def applies(inputs: PassInputs, tokens: Count) -> Any:
    """Whether an all-reduce of so many whole tokens is large enough; those of fewer channels are asked one by one."""
    return tokens * float(inputs.model.hidden * STATE_BYTES) >= LEAST_BYTES


def rewrite(layout: Layout, bits: str) -> Layout:
    """Quantise every all-reduce but the embedding's."""

    def quantized(step: Step) -> Step:
        role = step.role
        if not isinstance(role, ResidualOp) or role.op != "all_reduce" or step.name.startswith("embedding"):
            return step
        return step._replace(role=role._replace(kernel=bits))

    return layout_of(layout, [(at, quantized(step)) for at, step in enumerate(steps_of(layout))])
