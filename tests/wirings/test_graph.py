"""The ops of a pass compute the equation, on random wiring files and in every named wiring."""

import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import PassInputs, ResidualOp
from ladder_sim.graph.pass_kernels import PassKernels
from ladder_sim.wirings.layout import Wiring
from tests.support.strategies import laid_out
from tests.support.wirings import SWITCHES, equation, files, lanes_of, rules_of, value, weight_of

RANKS = 3


def layout_of(variant: str, layers: int, tp: int = 2) -> Layout:
    scenario = Scenario(model="8b", tp=tp, overrides={"model.layers": str(layers)})
    return PassKernels(PassInputs.of(scenario), "decode").layout(variant)


def read_by_ops(layout: Layout, parts: list[np.ndarray], embedding: float, channel: int) -> list[np.ndarray]:
    """What the norm in front of each block gives on each rank, and that of the LM head, if norms change nothing."""
    wiring: Wiring = layout.wiring
    values: list[Any] = []
    reads: list[np.ndarray] = []
    block = -1
    for name, after, like in zip(layout.names, layout.after, layout.same_as, strict=True):
        role, given = layout.roles[like], [values[number] for number in after]
        if not isinstance(role, ResidualOp):
            values.append(parts[block])
            continue
        averages = 0 <= block < len(parts) and wiring.blocks[block][1].averages
        if role.op == "embedding":
            values.append(np.full(RANKS, embedding))
        elif role.op == "add_others":
            values.append(given[0] + given[1] - given[2])
        elif re.search(r"\.fold\d*$", name):
            values.append(given[0] / (RANKS if averages else 1) + given[1])
        elif role.op == "all_reduce":
            covers = (channel >= role.percent) if role.others else (channel < role.percent)
            summed = np.full(RANKS, given[0].sum() / (RANKS if role.others else 1))
            values.append(summed if covers else given[0])
        elif ".mean" in name:
            values.append((given[0] + given[1]) / len(wiring.lanes))
        else:
            values.append(sum(given[1:], given[0]))
        if name.endswith(".norm"):
            reads.append(values[-1])
            block += 1
    return reads


def check(variant: str, layers: int, seed: int, channel: int) -> None:
    rules = rules_of(variant, layers)
    layout = layout_of(variant, layers)
    numbers = np.random.default_rng(seed)
    embedding, own = float(numbers.normal()), [numbers.normal(size=RANKS) for _ in rules]
    # a factor that all lanes share scales the output's projection
    lanes = lanes_of(rules)
    uniform = [len({weight_of(rule, lane) for lane in lanes}) == 1 for rule in rules]
    made = [
        each * (weight_of(rule, lanes[0]) if same else 1) for each, rule, same in zip(own, rules, uniform, strict=True)
    ]
    reads = read_by_ops(layout, made, embedding, channel)
    head = layout.wiring.head
    for i, read in enumerate(equation(rules, channel)):
        wanted = np.zeros(RANKS)
        block_lanes = [rules[i].lane] if i < len(rules) else lanes
        for lane in block_lanes:
            each = [
                embedding + value(read, own, rank, lambda j, lane=lane: weight_of(rules[j], lane))
                for rank in range(RANKS)
            ]
            wanted += np.array(each) / len(block_lanes)
        if i == len(rules) and head == "mean":
            wanted[:] = wanted.mean()
        np.testing.assert_allclose(reads[i], wanted, atol=1e-9, err_msg=f"{variant} block {i}")


@given(files(), st.integers(0, 999), st.sampled_from([0, 75]))
def test_ops_compute_the_equation(case: tuple[str, int], seed: int, channel: int) -> None:
    check(*case, seed, channel)


@given(files(SWITCHES), st.integers(0, 999))
def test_every_lane_has_an_add(case: tuple[str, int], seed: int) -> None:
    check(*case, seed, 0)


@given(laid_out(), st.integers(0, 999), st.sampled_from([0, 75]))
def test_ops_of_named_wirings_compute_the_equation(case: tuple[str, int], seed: int, channel: int) -> None:
    check(*case, seed, channel)
