"""Layouts know no sizes: what differs in sizes only shares one, and kernels of equal blocks are made once."""

from typing import Any

import pytest

from ladder_sim import Scenario
from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.pass_kernels import PassKernels, kernels_of
from ladder_sim.kernels import Phase
from tests.support.scenarios import VARIANTS

SPARSE: dict[str, Any] = {"model": "deepseek-v3", "nodes": 8, "stack": "vllm", "batch": 64, "tp": 8}
DENSE: dict[str, Any] = {"model": "70b", "stack": "vllm", "tp": 8}


def layout_of(variant: str, phase: Phase = "decode", **given: Any) -> Layout:
    kernels = kernels_of(PassInputs.of(Scenario(**given)).of_one_token(), phase)
    return kernels.layout(variant, keep=3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_plans_precisions_and_sizes_share_a_layout(variant: str) -> None:
    one = layout_of(variant, **SPARSE)
    for other in ({"tp": 16}, {"ep": 8}, {"tp": 32, "ep": 4}, {"dp": 2}, {"kv_dtype": "bf16"}, {"prompt": 7}):
        assert layout_of(variant, **{**SPARSE, **other}) is one, other
    dense = layout_of(variant, **DENSE)
    assert layout_of(variant, "prefill", **DENSE) is dense
    for other in ({"tp": 2}, {"overrides": {"model.vocab": "1024"}}, {"cluster": "h200-sxm", "batch": 9}):
        assert layout_of(variant, **{**DENSE, **other}) is dense, other


def test_what_changes_the_ops_has_a_layout_of_its_own() -> None:
    plans = ({}, {"tp": 1}, {"attention_dp": 2}, {"sp": True}, {"pp": 2}, {"overrides": {"model.layers": "40"}})
    layouts = [layout_of("ladder", **{**SPARSE, **plan}) for plan in plans]
    assert len(set(layouts)) == len(plans)


def test_layers_of_two_kinds_share_the_kernels_that_they_have_in_common() -> None:
    """Gemma's layers differ in their window, DeepSeek's in their feed-forward."""
    for model, attentions in (("gemma-3-27b", 2), ("deepseek-v3", 1)):
        kernels = PassKernels(PassInputs.of(Scenario(model=model, stack="vllm", tp=8)).of_one_token(), "decode")
        layout = kernels.layout("standard", keep=3)
        numbers = {kernels.number(role) for role in layout.roles}
        kinds = [kernels.distinct[number].kind for number in numbers]
        assert kinds.count("attention") == attentions, model
        assert len(numbers) <= 30 < len(layout.names)
        # each op is the kernel of its role
        for op, like in zip(kernels.ops(layout), layout.same_as, strict=True):
            assert op.shape is kernels.of(layout.roles[like]).shape
