"""A forward pass as a graph of its ops, which tests look at."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import networkx as nx

from ladder_sim.graph.ops import Op, PassInputs
from ladder_sim.graph.pass_kernels import PassKernels, pass_ops
from ladder_sim.graph.techniques import form, rewrites_of
from ladder_sim.kernels import Phase
from ladder_sim.specs.scenario import Scenario

if TYPE_CHECKING:
    _OpGraph = nx.DiGraph[str]
else:
    _OpGraph = nx.DiGraph


class StepGraph(_OpGraph):
    """Nodes are op names in issue order, edges are data dependencies; the attribute ``op`` of a node is its `Op`."""

    def __init__(self, phase: Phase = "decode", **attributes: Any) -> None:
        super().__init__(**attributes)
        self.phase: Phase = phase

    def op(self, name: str) -> Op:
        op: Op = self.nodes[name]["op"]
        return op

    def ops(self) -> Iterator[Op]:
        """Every op, in issue order."""
        return map(self.op, self.nodes)


def build(scenario: Scenario | PassInputs, phase: Phase, kv_len: int) -> StepGraph:
    """The graph of one rank's forward pass; as `pass_ops`."""
    inputs = scenario if isinstance(scenario, PassInputs) else PassInputs.of(scenario)
    kernels = PassKernels(inputs, phase, kv_len)
    layout = kernels.layout(inputs.variant, rewrites_of(inputs, form(inputs, phase, kernels.rank.tokens)))
    graph = StepGraph(phase)
    for op, needed in zip(pass_ops(inputs, phase, kv_len), layout.after, strict=True):
        graph.add_node(op.name, op=op)
        graph.add_edges_from((layout.names[number], op.name) for number in needed)
    return graph
