"""Sweeps: every point equals a single prediction, in order, whatever the chunks and the processes."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.errors import LadderSimError, ProfileError, UnknownNameError, UsageError
from ladder_sim.sweeps import evaluate as evaluation
from ladder_sim.sweeps import grid as grids
from ladder_sim.sweeps.executors import Processes, serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import options_of, run, sweep
from ladder_sim.sweeps.table import SweepTable
from tests.support.predict_one import predict_one
from tests.support.scenarios import VARIANTS


def _same(found: SweepTable, other: SweepTable) -> bool:
    return list(found.columns) == list(other.columns) and all(
        np.array_equal(values, other[name], equal_nan=values.dtype.kind == "f")
        for name, values in found.columns.items()
    )


def test_every_point_equals_a_single_prediction() -> None:
    """Over fields that change the graph, settings that do not, and hardware figures in arrays."""
    found = sweep(
        None,
        {
            "model": "8b,70b",
            "stack": "gpt-fast,vllm",
            "batch": "1,16",
            "intra.bandwidth": "100:400:x4GB/s",
            "gpu.kernel": "1,4us",
            "gpu.sms": "96,132",
        },
        VARIANTS,
    )
    assert len(found) == 2**6
    for row in range(0, len(found), 3):
        scenario = Scenario(
            model=found["model"][row],
            stack=found["stack"][row],
            batch=int(found["batch"][row]),
            overrides={name: found[name][row].item() for name in ("intra.bandwidth_Bps", "gpu.kernel_s", "gpu.sms")},
        )
        single = predict(scenario, VARIANTS)
        for variant in VARIANTS:
            one = single[variant]
            expected = (one.ttft_s, one.tpot_s, one.tokens_per_s.value, one.speedup.value)
            metrics = ("ttft_s", "tpot_s", "tokens_per_s", "speedup")
            assert [found[f"{variant}.{metric}"][row] for metric in metrics] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("asked", "axis"),
    [
        ({"model": "8b", "technique": "token-split:2"}, {"batch": (1, 4)}),
        ({"model": "8b", "stack": "vllm", "stack.attention": "math", "concurrency": 1}, {"prompt": (1024, 16384)}),
    ],
    ids=["split", "chunks"],
)
def test_whole_prompts_and_parts_of_them_share_a_sweep(asked: dict[str, Any], axis: dict[str, Any]) -> None:
    """Regression: attention of the whole prompts among them had no context, and the sweep ended with an error."""
    settings = {name: value for name, value in asked.items() if "." in name}
    fields = {name: value for name, value in asked.items() if name not in settings}
    found = sweep(None, {**asked, **axis}, ["standard"])
    for row, (name, value) in enumerate((name, value) for name, values in axis.items() for value in values):
        alone = predict_one(Scenario(**fields, **{name: value}, overrides=settings))
        assert found["standard.ttft_s"][row] == pytest.approx(alone.ttft_s)


def test_an_error_of_one_point_is_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a sweep of thousands of points that ends at one of them, whatever its error is."""
    whole = evaluation.simulated_alike

    def of_one_batch(scenario: Scenario, *rest: Any, **how: Any) -> Any:
        if scenario.plan.tp == 4:
            raise ValueError("a collective on one rank")
        return whole(scenario, *rest, **how)

    monkeypatch.setattr(evaluation, "simulated_alike", of_one_batch)
    found = sweep(None, {"model": "8b", "tp": "2,4,8"}, ["ladder"])
    assert found["infeasible"].tolist() == ["", "ValueError: a collective on one rank (a bug)", ""]
    assert np.isnan(found["ladder.speedup"]).tolist() == [False, True, False]


AXES: dict[str, list[object]] = {
    "model": ["8b", "70b"],
    "cluster": ["h100-sxm", "l40s-pcie"],
    "stack": ["gpt-fast", "vllm"],
    "tp": [2, 8],
    "batch": [1, 7, 64],
    "prompt": [1, 300],
    "gen": [1, 2, 65],
    "dtype": ["bf16", "fp8"],
    "allreduce": ["auto", "nccl"],
    "p2p": [True, False],
    "model.layers": [1, 9],
    "stack.stream_wait_s": [0.0, 1e-5],
    "stack.cuda_graphs": ["off", "decode"],
    "intra.bandwidth_Bps": [5e10, 9e11],
    "intra.allreduce_floor_s": [1e-7, 2e-5],
    "gpu.hbm_bandwidth_Bps": [1e12, 4e12],
}


@given(st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=4, unique=True), st.data())
def test_a_row_of_any_sweep_equals_a_single_prediction(names: list[str], data: st.DataObject) -> None:
    table = sweep(None, {name: AXES[name] for name in names}, VARIANTS, profile="none", ignore_memory=True)
    row = data.draw(st.integers(0, len(table) - 1))
    values = {name: table[name][row] for name in names}
    arguments = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    overrides = {name: arguments.pop(name) for name in names if "." in name}
    try:
        single = predict(Scenario(**arguments, overrides=overrides), VARIANTS, profile="none", ignore_memory=True)
    except LadderSimError as error:
        assert table["infeasible"][row] == error.message  # noqa: PT017
        return
    for variant in VARIANTS:
        assert table[f"{variant}.ttft_s"][row] == pytest.approx(single[variant].ttft_s, rel=1e-9)
        assert table[f"{variant}.speedup"][row] == pytest.approx(single[variant].speedup.value, rel=1e-9)


def test_sizes_share_a_graph_and_keep_their_own_reasons() -> None:
    """Points that fit, that do not, and that cannot be, between each other: each row is what it is alone."""
    axes = {"model": "70b", "stack": "vllm", "batch": "1:512:x8", "prompt": "1000,99999999,100000001", "gen": "1,600"}
    found = sweep(None, {**axes, "inter.allreduce_floor": "1,2us"}, ["ladder"])
    assert len(found) == 4 * 3 * 2 * 2
    assert 0 < found.feasible.sum() < len(found)
    for row in range(0, len(found), 2):
        one = {name: [found[name][row].item()] for name in ("batch", "prompt", "gen")}
        alone = sweep(None, {**axes, **one}, ["ladder"])
        assert found["infeasible"][row] == alone["infeasible"][0]
        for name in ("memory_bytes_per_gpu", "ladder.ttft_s", "ladder.tpot_s", "ladder.speedup"):
            assert found[name][row] == pytest.approx(alone[name][0], rel=1e-12, nan_ok=True), name


def test_a_setting_has_the_last_word_over_sizes() -> None:
    found = sweep(None, {"model": "8b", "batch": "1,2", "workload.batch": "4"}, ["ladder"])
    assert (
        found["ladder.ttft_s"][0]
        == found["ladder.ttft_s"][1]
        == sweep(None, {"model": "8b", "batch": 4})["ladder.ttft_s"]
    )


def test_rows_come_in_the_grids_order() -> None:
    """Fields of the scenario first, hardware figures last and fastest, whatever the order they were named in."""
    found = sweep(None, {"inter.allreduce_floor": "1,2us", "batch": "2,1", "model": "8b", "tp": "4,2"}, ["ladder"])
    assert found.varied == ("tp", "batch", "inter.allreduce_floor_s")
    places = zip(found["tp"], found["batch"], found["inter.allreduce_floor_s"], strict=True)
    assert list(places) == list(itertools.product((4, 2), (2, 1), (1e-6, 2e-6)))


def test_what_cannot_run_is_a_row_with_the_reason() -> None:
    found = sweep(None, {"model": "8b,405b", "tp": "8,5,16", "stack": "vllm"}, ["ladder"])
    reasons = dict(zip(zip(found["model"], found["tp"], strict=True), found["infeasible"], strict=True))
    assert reasons["llama-3.1-8b", 8] == reasons["llama-3.1-405b", 16] == ""
    assert "not divisible by tp 5" in reasons["llama-3.1-8b", 5]
    assert "85.5 GB per GPU" in reasons["llama-3.1-405b", 8]
    blank = ~found.feasible
    assert np.isnan(found["ladder.speedup"][blank]).all()
    assert not np.isnan(found["ladder.speedup"][~blank]).any()


def test_what_cannot_run_is_batched_as_the_rest() -> None:
    for load in ({"concurrency": 8}, {"concurrency": [8, 16]}, {"batch": 8}, {"batch": [8, 16]}):
        point = {"model": "8b", "stack": "vllm", "nodes": 1, "tp": 8, "pp": [1, 2], **load}
        table = sweep(None, point, variants=["ladder"])
        assert table.feasible.tolist() == [True] * (len(table) // 2) + [False] * (len(table) // 2)
        assert set(table["batching"]) == {"continuous" if "concurrency" in load else "static"}


def test_a_variant_deeper_than_the_model_is_a_reason_too() -> None:
    found = sweep(None, {"model": "8b,70b"}, ["hybrid-ladder:40"])
    assert "at most 32" in found["infeasible"][0]
    assert found["infeasible"][1] == ""


def test_a_group_gets_the_nodes_it_needs() -> None:
    found = sweep(None, {"model": "405b", "tp": "8:32"}, ["ladder"], ignore_memory=True)
    assert found["nodes"].tolist() == [1, 2, 4]
    assert sweep(None, {"model": "405b", "tp": "16", "nodes": "1"}).feasible.tolist() == [False]


def test_a_plan_gets_the_nodes_it_needs_and_is_that_of_predict() -> None:
    plans = {"tp": [1, 4], "pp": [1, 4], "ep": [1, 4], "attention_dp": [1, 4]}
    point = {"model": "mixtral-8x7b", "stack": "vllm", "batch": 8}
    table = sweep(None, {**point, **plans}, ["standard"], ignore_memory=True)
    # four parts of the experts need the ranks of a stage to be a multiple of four
    assert table.feasible.sum() == 14
    for row in np.flatnonzero(table.feasible):
        plan = {name: int(table[name][row]) for name in plans}
        nodes = int(table["nodes"][row])
        assert nodes == -(-plan["tp"] * plan["pp"] * plan["attention_dp"] // 8)
        alone = predict_one(Scenario(**point, nodes=nodes, **plan), ignore_memory=True)
        assert table["standard.ttft_s"][row] == pytest.approx(alone.ttft_s, rel=1e-12)


def test_sizes_that_cannot_run_do_not_take_a_block_apart() -> None:
    """Two requests cannot be shared by four groups; the figures of the others are still priced in one call."""
    fixed = {"model": ["mixtral-8x7b"], "stack": ["vllm"], "nodes": [1], "tp": [1], "attention_dp": [4]}
    grid = Grid({**fixed, "batch": [2, 4, 8], "intra.bandwidth": "100:400:+1GB/s"}, ["standard"])
    blocks = grid.chunk(0)
    assert [(block.count, block.problem == "") for block in blocks] == [(301, False), (301, True), (301, True)]


def test_one_new_token_has_no_time_per_token() -> None:
    found = sweep(None, {"model": "8b", "gen": "1,2"}, ["ladder"])
    assert np.isnan(found["ladder.tpot_s"]).tolist() == [True, False]
    assert found.feasible.all()


@pytest.mark.parametrize(("points", "blocks"), [(1, 1), (7, 2), (10**6, 10**6)])
def test_chunks_change_nothing(points: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a grid is cut, each point is there once: blocks of 24 points are cut, joined or left whole."""
    axes = {"model": "8b", "batch": "1:4", "intra.bandwidth": "100:800:x2GB/s", "intra.allreduce_floor": "1:6:+1us"}
    whole = sweep(None, axes, ["ladder"])
    monkeypatch.setattr(grids, "CHUNK_POINTS", points)
    monkeypatch.setattr(grids, "CHUNK_BLOCKS", blocks)
    grid = Grid(axes, ["ladder"])
    assert sum(map(grid.points, range(grid.chunks))) == grid.size == 72
    cut = run(grid, options_of(grid, None, ignore_memory=False), serial)
    for name, values in whole.columns.items():
        # configurations computed together are rounded together
        assert np.array_equal(values, cut[name]) if values.dtype.kind != "f" else cut[name] == pytest.approx(values)


def test_processes_give_what_one_gives() -> None:
    axes = {"model": "8b", "batch": "1:70:+1", "intra.allreduce_floor": "1,2us"}
    grid = Grid(axes, ["ladder"])
    how = options_of(grid, None, ignore_memory=False)
    counted: list[int] = []
    assert _same(run(grid, how, serial), run(grid, how, Processes(2), counted.append))
    assert counted[-1] == grid.size == 140


def test_a_dead_worker_is_an_error_with_a_way_out() -> None:
    with pytest.raises(LadderSimError, match="a worker process died") as caught:
        list(Processes(1)(_die, [1]))
    assert "--resume" in caught.value.hint


def _die(_: int) -> None:
    import os

    os._exit(9)


def test_values_may_be_objects() -> None:
    from ladder_sim.specs import catalog

    model = catalog.model("8b")
    assert sweep(None, {"model": [model], "tp": [1, 2], "p2p": False})["tp"].tolist() == [1, 2]
    with pytest.raises(UsageError, match="no values"):
        sweep(None, {"model": []})


def test_a_wrong_profile_is_no_points_fault() -> None:
    """It is an error at once, not a reason in every row."""
    with pytest.raises(ProfileError, match="no shipped profile"):
        sweep(None, {"model": "8b"}, profile="h100")


def test_an_unknown_column_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown column 'ladder\.speed'"):
        _ = sweep(None, {"model": "8b"}, ["ladder"])["ladder.speed"]


def test_a_table_holds_columns_not_rows() -> None:
    with pytest.raises(UsageError, match="column 0: must be text, the name of a column"):
        next(iter(sweep(None, {"model": "8b"}, ["ladder"])))
