"""The graph of one forward pass with all of its ops: predictions need no more than kernels and a layout."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import networkx as nx

from ladder_sim.graph.inputs import PassInputs
from ladder_sim.graph.ops import WHOLE, Op, Phase
from ladder_sim.graph.pass_kernels import PassKernels
from ladder_sim.graph.sizes import Sizes
from ladder_sim.graph.techniques.forms import form, rewrites_of
from ladder_sim.specs.scenario import Scenario

if TYPE_CHECKING:
    _OpGraph = nx.DiGraph[str]
else:
    _OpGraph = nx.DiGraph


class StepGraph(_OpGraph):
    """Dependency graph of one forward pass: nodes are op names in issue order, edges are data dependencies.

    Node attribute ``op`` holds the `Op`. Costs are kept apart, so that one graph serves any hardware.
    """

    def __init__(self, phase: Phase = "decode", **attributes: Any) -> None:
        super().__init__(**attributes)
        self.phase: Phase = phase

    def add_op(self, op: Op, *, after: Iterable[str]) -> str:
        """Append `op`, which needs the ops named in `after`; returns its name."""
        self.add_node(op.name, op=op)
        for name in after:
            self.add_edge(name, op.name)
        return op.name

    def op(self, name: str) -> Op:
        op: Op = self.nodes[name]["op"]
        return op

    def ops(self) -> Iterator[Op]:
        for name in self.nodes:
            yield self.op(name)


def build(scenario: Scenario | PassInputs, phase: Phase, kv_len: int) -> StepGraph:
    """The graph of one rank's forward pass.

    Parameters
    ----------
    scenario
        Model, workload, stack, plan and variant.
    phase
        ``"prefill"`` runs every prompt token, ``"decode"`` one token per sequence, ``"mixed"`` that and a prompt.
    kv_len
        Tokens of context the step attends to, its own included. A static-cache (``math``) attention reads
        ``prompt + gen`` whatever the context.
    """
    inputs = scenario if isinstance(scenario, PassInputs) else PassInputs.of(scenario)
    kernels = PassKernels(inputs, phase, kv_len)
    layout = kernels.layout(inputs.variant, rewrites_of(inputs, form(inputs, phase, kernels.rank.tokens)))
    graph = StepGraph(phase)
    # of a part, grown from one token's
    sizes, small = _sizes(inputs, phase, kv_len), PassKernels(inputs.of_one_token(), phase).ops(layout)
    for op, one, needed in zip(kernels.ops(layout), small, layout.after, strict=True):
        graph.add_op(op if op.portion == WHOLE else sizes.op(one), after=[layout.names[number] for number in needed])
    return graph


def _sizes(inputs: PassInputs, phase: Phase, kv_len: int) -> Sizes:
    workload = inputs.workload
    sizes = {"batch": workload.batch, "prompt": workload.prompt, "gen": workload.gen}
    if phase != "mixed":
        return Sizes.of(inputs.stack, phase, kv_len, **sizes)
    return Sizes.mixed(inputs.stack, kv_len, **sizes, prompts=1, chunk=workload.prompt, duty=0.0)
