"""All-reduce, add and norm in one kernel: its time next to measurements and to the two kernels that it replaces."""

import csv
import dataclasses
from typing import Any

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import Op, OpKind
from ladder_sim.kernels import CollectiveShape, ElementwiseShape
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs import catalog
from tests.conftest import DATA

# hidden 8192, 16 bits
TOKEN_BYTES = 16384


def estimates(kind: OpKind, sizes: list[float], **fields: object) -> list[Estimate]:
    scenario = Scenario(**{"stack": "vllm", **fields})
    shapes = [
        ElementwiseShape(moved_bytes=4 * size) if kind == "norm" else CollectiveShape(message_bytes=size)
        for size in sizes
    ]
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    return costs.estimates([Op(name="op", kind=kind, shape=shape) for shape in shapes])


def seconds(kind: OpKind, sizes: list[float], **fields: object) -> np.ndarray:
    return np.array([each.seconds for each in estimates(kind, sizes, **fields)])


def columns(name: str) -> dict[str, np.ndarray]:
    with (DATA / name).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("all_reduce", "figure_5_multimem_us"),
        ("all_reduce", "figure_7_multimem_us"),
        ("all_reduce_norm", "figure_10_fused_us"),
    ],
)
def test_runs_that_gave_no_figure(kind: OpKind, column: str) -> None:
    """Floor and rate are those of figure 4; these are other runs of all sizes, 1 to 512 MB."""
    measured = columns("tokenweave_runs.csv")
    predicted_s = seconds(kind, measured["bytes"].tolist(), allreduce="fused-norm")
    errors = np.abs(predicted_s / (1e-6 * measured[column]) - 1)
    assert errors.mean() <= 0.02
    assert errors.max() <= 0.05


def test_what_the_norm_adds_from_the_other_sizes() -> None:
    """Each size is left out of the one figure once."""
    measured = columns("tokenweave_allreduce.csv")
    sizes, fused_us = TOKEN_BYTES * measured["BL"], measured["fused_arln_us"]
    alone_us = 1e6 * seconds("all_reduce", sizes.tolist(), allreduce="multimem")
    added_us, weights = fused_us - alone_us, fused_us**-2
    shipped_s = seconds("all_reduce_norm", [1.0], allreduce="fused-norm")
    shipped_us = 1e6 * float((shipped_s - seconds("all_reduce", [1.0], allreduce="multimem"))[0])
    assert np.average(added_us, weights=weights) == pytest.approx(shipped_us, abs=0.1)
    left_out = []
    for at in range(len(sizes)):
        kept = np.arange(len(sizes)) != at
        figure_us = np.average(added_us[kept], weights=weights[kept])
        left_out.append(abs((alone_us[at] + figure_us) / fused_us[at] - 1))
    assert np.mean(left_out) <= 0.02


def test_norms_run_at_the_measured_rate() -> None:
    """Apart from the floor, which holds an eager launch: from 64 MB on."""
    measured = columns("tokenweave_allreduce.csv")
    sizes, measured_s = TOKEN_BYTES * measured["BL"], 1e-6 * measured["full_rms_norm_us"]
    predicted_s = seconds("norm", sizes.tolist())
    assert np.abs(predicted_s / measured_s - 1)[-4:].max() <= 0.04
    assert predicted_s[0] < 0.5 * measured_s[0]


def test_it_replaces_two_kernels() -> None:
    """Less than both, more than the all-reduce alone; nothing of it was measured here."""
    sizes = [2.0**power for power in range(13, 20)]
    for fields in ({"stack": "vllm"}, {"stack": "trtllm"}, {"allreduce": "fused-norm"}, {"cluster": "b200-sxm"}):
        fused = estimates("all_reduce_norm", sizes, **fields)
        reduce_s, norm_s = seconds("all_reduce", sizes, **fields), seconds("norm", sizes, **fields)
        fused_s = np.array([each.seconds for each in fused])
        assert (reduce_s < fused_s).all()
        assert (fused_s < reduce_s + norm_s).all()
        # engines issue it among their kernels, so that no stream waits for another
        assert {each.inline for each in fused} == {1.0}
        assert "measured" not in {each.source for each in fused}


@pytest.mark.parametrize("stack", ["vllm", "trtllm"])
def test_a_token_is_faster_by_what_the_two_kernels_take_longer(stack: str) -> None:
    fields: dict[str, Any] = {"stack": stack, "batch": 16, "prompt": 512, "gen": 2}
    spec = catalog.stack(stack)
    own = dataclasses.replace(spec.own_allreduce, fused_norm_rules=())
    apart = {**fields, "stack": dataclasses.replace(spec, own_allreduce=own)}
    fused, separate = predict(Scenario(**fields)), predict(Scenario(**apart))
    size = [16.0 * TOKEN_BYTES]
    scenario = Scenario(**fields)
    slowed = 1 + scenario.cluster.rank_skew
    two_s = seconds("all_reduce", size, **fields) + slowed * seconds("norm", size, **fields)
    gain_s = 160 * float((two_s - seconds("all_reduce_norm", size, **fields))[0])
    assert gain_s > 0
    assert separate["standard"].tpot_s - fused["standard"].tpot_s == pytest.approx(gain_s, rel=1e-6)
    # nothing that overlaps is fused
    for variant in ("ladder", "upper-bound"):
        assert fused[variant].tpot_s == separate[variant].tpot_s
    # prompts are beyond the limit of vLLM
    if stack == "vllm":
        assert fused["standard"].ttft_s == separate["standard"].ttft_s


def test_by_name_it_needs_what_multimem_needs() -> None:
    with pytest.raises(UsageError, match="'fused-norm' needs an NVLink switch"):
        estimates("all_reduce", [1e6], cluster="h100-pcie", allreduce="fused-norm")
    with pytest.raises(UsageError, match="'fused-norm' needs peer-to-peer"):
        estimates("all_reduce", [1e6], p2p=False, allreduce="fused-norm")
    # all-reduces without a norm are multimem's
    assert seconds("all_reduce", [1e6], allreduce="fused-norm") == seconds("all_reduce", [1e6], allreduce="multimem")
