"""The catalog, the rules of the specs, and the scenario that joins them."""

import dataclasses
import json
import math
import tomllib
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from ladder_sim.costs.memory import memory_use
from ladder_sim.display.labels import asked_text
from ladder_sim.errors import LadderSimError, PartitionError, SpecError, UnitError, UnknownNameError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import scenario_warnings
from ladder_sim.specs.workload import Workload
from ladder_sim.validation.dataset import read_dataset

DATA = resources.files("ladder_sim.specs") / "data"


def test_parameter_counts() -> None:
    """Those of the published Llama checkpoints."""
    assert catalog.model("8b").parameters == 8_030_261_248
    assert catalog.model("70b").parameters == 70_553_706_496
    assert catalog.model("405b").parameters == 405_853_388_800
    assert catalog.model("34b").parameters == 33_743_970_304
    # eight more key and value heads of 128 in each of 126 layers
    assert catalog.model("llama-3.1-405b-kv16").parameters == 405_853_388_800 + 126 * 2 * 16384 * 8 * 128
    assert 1.1e9 < catalog.model("1b").parameters < 1.5e9
    assert 3.0e9 < catalog.model("3b").parameters < 3.8e9
    # the gate makes it larger than BLOOM's 176 billion
    assert 2.1e11 < catalog.model("176b").parameters < 2.2e11


# keys and values of 80 layers and 8 heads of 128, in 16 bits
KV_BYTES_PER_TOKEN = 2 * 80 * 8 * 128 * 2


def test_kv_cache_of_a_prediction() -> None:
    scenario = Scenario(model="70b", tp=1, batch=3, prompt=99, gen=1)
    assert memory_use(scenario).kv_cache_bytes == 3 * 100 * KV_BYTES_PER_TOKEN


def test_names_and_aliases() -> None:
    assert set(catalog.MODEL_ALIASES.values()) < set(catalog.model_names())
    for alias, name in catalog.MODEL_ALIASES.items():
        assert catalog.model(alias) is catalog.model(name) is catalog.model(alias.upper())
        assert catalog.model(alias).name == name
    for name in catalog.cluster_names():
        assert catalog.cluster(name).name == name
    for name in catalog.stack_names():
        assert catalog.stack(name).name == name


def test_every_model_figure_has_a_source() -> None:
    for name in catalog.model_names():
        config = json.loads((DATA / "models" / f"{name}.json").read_text("utf-8"))
        sources = catalog.model_config(name)["_sources"]
        assert set(sources) == set(config) - {"_sources", "_ids", "model_type"}
        assert all(len(text) > 10 for text in sources.values())
        assert catalog.model(name).source
    with pytest.raises(UnknownNameError):
        catalog.model_config("9b")


@pytest.mark.parametrize("folder", ["clusters", "stacks"])
def test_every_toml_table_has_a_source(folder: str) -> None:
    for file in (DATA / folder).iterdir():
        table = tomllib.loads(file.read_text("utf-8"))
        tables = [table, *(inner for inner in table.values() if isinstance(inner, dict))]
        assert all(len(inner["source"]) > 10 for inner in tables), file.name


def test_h100_figures() -> None:
    cluster = catalog.cluster("h100-sxm")
    assert cluster.gpu.bf16_flops == 989.4e12
    assert cluster.gpu.hbm_bytes == 81559 * 2**20
    assert cluster.gpu.hbm_bandwidth_Bps == 3.35e12
    assert cluster.intra.bandwidth_Bps == 450e9
    assert cluster.inter.bandwidth_Bps == 50e9
    assert (cluster.intra.allreduce_floor_s, cluster.inter.allreduce_floor_s) == (15.6e-6, 40e-6)
    assert [getattr(cluster, t).name for t in ("intra", "inter", "host")] == ["intra", "inter", "host"]


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (
            "model",
            "405bb",
            "did you mean '405b'? `ladder-sim list models` shows all, any other is given by its config.json",
        ),
        (
            "model",
            "lama-3.1-405b",
            "did you mean 'llama-3.1-405b'? `ladder-sim list models` shows all, any other is given by its config.json",
        ),
        # other sizes and other products are no typing errors
        ("model", "llama-3.1-45b", "`ladder-sim list models` shows all, any other is given by its config.json"),
        ("cluster", "h100-smx", "did you mean 'h100-sxm'? `ladder-sim list clusters` shows all"),
        ("stack", "tensorflow", "known: gpt-fast, sglang, trtllm, vllm; `ladder-sim list stacks` shows all"),
        ("stack", "tensorrt", "write trtllm"),
        ("stack", "vlm", "did you mean 'vllm'? `ladder-sim list stacks` shows all"),
    ],
)
def test_unknown_name(kind: str, name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        getattr(catalog, kind)(name)
    assert caught.value.message == f"unknown {kind} '{name}'"
    assert caught.value.hint == hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", " ", "???", "a\0b", "x" * 5000])
def test_odd_names(name: str) -> None:
    for look_up in (catalog.model, catalog.cluster, catalog.stack):
        with pytest.raises(UsageError):
            look_up(name)


def changed_file(tmp_path: Path, name: str, old: str = "", new: str = "") -> str:
    folder = "clusters" if name == "h100-sxm" else "stacks"
    text = (DATA / folder / f"{name}.toml").read_text("utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), "utf-8")
    return str(path)


def test_own_cluster_and_stack_files(tmp_path: Path) -> None:
    path = changed_file(tmp_path, "h100-sxm", 'name = "h100-sxm"', "")
    assert dataclasses.replace(catalog.cluster(path), name="h100-sxm") == catalog.cluster("h100-sxm")
    assert catalog.cluster(path).name == "mine"
    # a field without its unit, and the file is read again
    path = changed_file(tmp_path, "h100-sxm", 'bandwidth_Bps = "400 Gb/s"', "bandwidth = '25 GB/s'")
    assert catalog.cluster(path).inter.bandwidth_Bps == 25e9
    path = changed_file(tmp_path, "vllm", 'attention = "flash"', 'attention = "math"')
    assert catalog.stack(path).attention == "math"


@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        ("gpus_per_node = 8", "gpus_per_node = 0", SpecError, "gpus_per_node is 0"),
        ("gpus_per_node = 8", "gpus_per_node = 8.5", SpecError, "gpus_per_node is 8.5: must be a whole number"),
        ("gpus_per_node = 8", "gpus_per_node = true", UnitError, "gpus_per_node"),
        ("gpus_per_node = 8", "gpus_per_node = 1979-05-27", SpecError, "must be a number"),
        ("gpus_per_node = 8", "gpu_per_node = 8", UnknownNameError, "key 'gpu_per_node'"),
        ("gpus_per_node = 8", "", SpecError, "gpus_per_node is missing"),
        ("gpus_per_node = 8", "gpus_per_node = ", SpecError, "not valid TOML"),
        ("gpus_per_node = 8", "x = " + "[" * 50_000, SpecError, "TOML"),
        ('profile = "h100-sxm"', "profile = 3", SpecError, "profile is 3: must be text"),
        ("[inter]", "[between]", SpecError, "[inter] is missing"),
        ('"400 Gb/s"', '"400 Gb"', UnitError, "[inter]: bandwidth_Bps: '400 Gb' has no known unit"),
        ('"400 Gb/s"', "nan", UnitError, "must be finite"),
        ('"450 GB/s"', "0", SpecError, "bandwidth_Bps is 0"),
        ('"3.35 TB/s"', "3350", SpecError, "hbm_bandwidth_Bps is 3350.0: must be a number from 1e+08"),
        ('"450 GB/s"', '"450"', UnitError, "[intra]: bandwidth_Bps: '450': a bandwidth needs a unit"),
        (
            'allreduce_floor_s = "15.6 us"',
            "allreduce_floor = 15.6",
            UnitError,
            "[intra]: allreduce_floor: '15.6': a time needs a unit",
        ),
        ('"15.6 us"', '"15.6 s"', SpecError, "allreduce_floor_s is 15.6"),
        ("sms = 132", 'sms = "many"', UnitError, "sms"),
    ],
)
def test_bad_cluster_file(tmp_path: Path, old: str, new: str, kind: type[LadderSimError], message: str) -> None:
    with pytest.raises(kind) as caught:
        catalog.cluster(changed_file(tmp_path, "h100-sxm", old, new))
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('attention = "flash"', 'attention = "flush"', "did you mean 'flash'?"),
        ('attention = "flash"', "attention = 3", "must be one of flash, math"),
        ("vocab_parallel = true", 'vocab_parallel = "yes"', "must be true or false"),
        ('cuda_graphs = "decode"', "cuda_graphs = true", "must be one of off, decode, all"),
        ('stream_wait_s = "1 us"', "stream_wait_s = -1", "must be finite and not negative"),
        ('allreduce = "auto"', 'allreduce = "oneshot"', "did you mean 'one-shot'?"),
        ("fused_norm_rules = [", "fused_norm_rules = 3\nmore = [", "fused_norm_rules must be a list of tables"),
        ("fused_norm_rules = [", "fused_norm_rules = [\n    8,", "fused_norm_rules[0] is 8: must be a table"),
        ("gpu_limits = [", "gpu_limits = [\n    8,", "gpu_limits[0] is 8: must be a table"),
        ("step_tokens = 16384 }", "step_token = 16384 }", "did you mean 'step_tokens'?"),
        ("{ gpus = 2, one-shot", "{ gpus = 2.5, one-shot", "gpus is 2.5: must be a whole number"),
        ("{ gpus = 2, one-shot", '{ gpus = 2, oneshot = "1 MiB", one-shot', "did you mean 'one-shot'?"),
        ("{ gpus = 2, one-shot", '{ gpus = 2, auto = "1 MiB", one-shot', "unknown"),
        ("{ gpus = 2, one-shot", '{ gpus = 2, nvls = "9 MiB", one-shot', "sizes must increase"),
        ("{ gpus = 2, one-shot", "{ gpus = 2, nvls = 9, one-shot", "nvls is 9: must be a size with its unit"),
        ("{ gpus = 2, one-shot", '{ gpus = 2, nvls = "9 us", one-shot', "9 us"),
        ("{ gpus = 2, one-shot", "{ compute_capability = -1, one-shot", "compute_capability is -1"),
    ],
)
def test_bad_stack_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.stack(changed_file(tmp_path, "vllm", old, new))
    assert message in str(caught.value)


def test_spec_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name, message in (("binary.toml", "not UTF-8 text"), ("missing.toml", "no such file")):
        for look_up in (catalog.cluster, catalog.stack):
            with pytest.raises(SpecError, match=message):
                look_up(str(tmp_path / name))


SPECS = {
    "model": catalog.model("8b"),
    "gpu": catalog.cluster("h100-sxm").gpu,
    "tier": catalog.cluster("h100-sxm").intra,
    "cluster": catalog.cluster("h100-sxm"),
    "stack": catalog.stack("gpt-fast"),
    "workload": Workload(),
    "scenario": Scenario(model="8b"),
}


def changed(spec: Any, field: str, value: object) -> Any:
    how = spec.having if isinstance(spec, Scenario) else partial(dataclasses.replace, spec)
    return how(**{field: value})


BAD_NUMBERS: list[Any] = [-1, math.nan, math.inf, True, "8", None, 10**400]


@pytest.mark.parametrize("bad", BAD_NUMBERS)
@pytest.mark.parametrize("spec", SPECS)
def test_every_number_is_checked(spec: str, bad: object) -> None:
    kinds = get_type_hints(type(SPECS[spec]))
    numbers = [name for name, kind in kinds.items() if kind in (int, float)]
    assert numbers
    for field in numbers:
        with pytest.raises(SpecError, match=rf"\b{field} is ") as caught:
            changed(SPECS[spec], field, bad)
        assert caught.value.hint


@pytest.mark.parametrize("spec", SPECS)
def test_every_flag_and_name_is_checked(spec: str) -> None:
    for field in dataclasses.fields(SPECS[spec]):
        if field.type is bool:
            with pytest.raises(SpecError, match=f"{field.name} is 1: must be true or false"):
                changed(SPECS[spec], field.name, 1)
        elif field.name in ("name", "fabric", "variant"):
            with pytest.raises(SpecError, match="must be text, not empty"):
                changed(SPECS[spec], field.name, "")


def test_zero_waits_are_allowed_and_zero_rates_are_not() -> None:
    """The ideal stack of the closed forms: launches and waits cost nothing."""
    ideal = dataclasses.replace(
        catalog.stack("gpt-fast"), collective_launch_s=0, stream_wait_s=0, eager_launch_s=0, memory_overhead_bytes=0
    )
    assert ideal.stream_wait_s == 0
    with pytest.raises(SpecError, match="bandwidth_Bps is 0"):
        dataclasses.replace(catalog.cluster("h100-sxm").intra, bandwidth_Bps=0)


def test_model_rules() -> None:
    model = catalog.model("8b")
    with pytest.raises(SpecError, match="query heads must be a multiple"):
        dataclasses.replace(model, kv_heads=5)
    with pytest.raises(SpecError, match="a ladder layer is 32"):
        dataclasses.replace(model, ladder_layers=(32,))
    with pytest.raises(SpecError, match="must be a tuple"):
        dataclasses.replace(model, ladder_layers=[1])


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"batch": 0}, "batch is 0: must be a whole number from 1 to 1000000", "--batch"),
        ({"batch": 1_000_001}, "batch is 1000001", "--batch"),
        ({"prompt": -3}, "prompt is -3", "--prompt"),
        ({"gen": 10**9}, "gen is 1000000000", "--gen"),
        ({"gen": 1.5}, "gen is 1.5", "--gen"),
        ({"prompt": 10**8, "gen": 1}, "is 100000001 tokens: must be at most 100000000", "shorter"),
        ({"dtype": "bf61"}, "unknown dtype 'bf61'", "did you mean 'bf16'?"),
        ({"dtype": 8}, "dtype is 8: must be one of bf16, fp16, fp8", "bf16"),
        ({"kv_dtype": "fp16"}, "unknown kv_dtype 'fp16'", "known: bf16, fp8"),
        ({"stack": "vllm", "concurrency": 0}, "concurrency is 0: must be a whole number", "--concurrency"),
        ({"stack": "vllm", "concurrency": 4, "batch": 2}, "batch 2 and concurrency 4", "one of them"),
        ({"stack": "gpt-fast", "concurrency": 4}, "stack 'gpt-fast' runs static batches only", "--stack vllm"),
        (
            {"stack": "vllm", "overrides": {"workload.spread": 0.1}},
            "workload.spread 0.1 without concurrency",
            "--concurrency",
        ),
        ({"concurrency": 4, "overrides": {"workload.spread": 1.5}}, "spread is 1.5", "workload.spread=0.1"),
        ({"concurrency": 4, "overrides": {"workload.rounds": 1}}, "rounds is 1", "workload.rounds=10"),
        ({"nodes": 0}, "nodes is 0", "--nodes"),
        ({"nodes": 10**9}, "nodes is 1000000000", "--nodes"),
        ({"tp": 0}, "tp is 0", "--tp"),
        ({"tp": True}, "tp is True", "--tp"),
        ({"gpus_per_node": 0}, "gpus_per_node is 0", "range"),
        ({"allreduce": "nvl"}, "unknown all-reduce 'nvl'", "did you mean 'nvls'?"),
        ({"model": "405bb"}, "unknown model", "405b"),
        ({"stack": "gptfast"}, "unknown stack", "gpt-fast"),
        ({"cluster": "h100sxm"}, "unknown cluster", "h100-sxm"),
        ({"overrides": {"inter.bandwith": "1GB/s"}}, "unknown setting", "inter.bandwidth"),
    ],
)
def test_scenario_refuses(change: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Scenario(**{"model": "8b", **change})
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


def test_scenario_defaults() -> None:
    scenario = Scenario()
    assert (scenario.model.name, scenario.cluster.name, scenario.stack.name) == (
        "llama-3.1-70b",
        "h100-sxm",
        "gpt-fast",
    )
    assert scenario.workload == Workload(batch=1, prompt=1024, gen=512, dtype="bf16")
    assert (scenario.nodes, scenario.plan.tp, scenario.variant, scenario.p2p) == (1, 8, "standard", True)
    assert scenario_warnings(scenario) == ()
    assert hash(scenario) == hash(Scenario())


@pytest.mark.parametrize(
    ("fields", "stack"),
    [
        # the paper's: dense, in 16 bits
        *(({"model": name}, "gpt-fast") for name in ("8b", "70b", "qwen3-32b", "ladder-3b")),
        # a precision of its user's is none of the model
        ({"model": "70b", "dtype": "fp8"}, "gpt-fast"),
        ({"model": "70b", "concurrency": 8}, "vllm"),
        ({"model": dataclasses.replace(catalog.model("70b"), weights_dtype="w4a16")}, "vllm"),
        *(({"model": name}, "vllm") for name in ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b", "llama-4-scout")),
        ({"model": "deepseek-v3", "nodes": 2}, "vllm"),
        ({"model": "deepseek-v3", "nodes": 2, "stack": "gpt-fast"}, "gpt-fast"),
    ],
)
def test_the_stack_that_is_not_named_is_what_the_model_is_run_with(fields: dict[str, Any], stack: str) -> None:
    scenario = Scenario(**fields)
    assert scenario.stack.name == stack
    assert (scenario.plan.tp, scenario.plan.gpus) == (8 * scenario.nodes, 8 * scenario.nodes)
    # naming what was chosen changes nothing but that it is named
    named = Scenario(**{**fields, "stack": stack, "tp": scenario.plan.tp})
    assert named == scenario
    assert scenario.chosen == {name: f"--{name}" for name in ("stack", "tp") if name not in fields}
    assert named.chosen == {}
    assert f"{stack} (--stack)" in asked_text(scenario) or "stack" in fields
    assert "--stack" not in asked_text(named)
    # what was not named follows the model
    assert scenario.replace(model="8b", concurrency=None).stack.name == fields.get("stack", "gpt-fast")


def test_ranks_and_nodes() -> None:
    two = Scenario(nodes=2)
    assert (two.plan.tp, two.ranks_per_node, two.group_nodes) == (16, 8, 2)
    assert (Scenario(tp=4).ranks_per_node, Scenario(tp=4).group_nodes) == (4, 1)
    assert Scenario(tp=1).plan.tp == 1
    four = Scenario(nodes=2, gpus_per_node=4)
    assert (four.plan.tp, four.ranks_per_node, four.group_nodes) == (8, 4, 2)
    assert Scenario(allreduce="one-shot").stack.allreduce == "one-shot"
    # the default degree counts the GPUs that a setting leaves
    assert Scenario(overrides={"cluster.gpus_per_node": "4"}).plan.tp == 4


def test_specs_in_place_of_names() -> None:
    model, cluster, stack = catalog.model("8b"), catalog.cluster("h100-sxm"), catalog.stack("vllm")
    scenario = Scenario(model=model, cluster=cluster, stack=stack)
    assert (scenario.model, scenario.cluster, scenario.stack) == (model, cluster, stack)


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"tp": 3}, "model 'llama-3.1-8b': heads is 32: not divisible by tp 3", "on 8 GPUs: 1, 2, 4, 8"),
        ({"nodes": 3}, "heads is 32: not divisible by tp 24", "1, 2, 4, 8, 16"),
        ({"tp": 8, "overrides": {"model.intermediate": "14340"}}, "intermediate is 14340: not divisible", "1, 2, 4"),
        (
            {"tp": 6, "overrides": {"model.heads": "24", "model.kv_heads": "4", "model.intermediate": "12288"}},
            "kv_heads is 4: neither divisible by tp 6 nor a divisor of it",
            "1, 2, 4, 8",
        ),
    ],
)
def test_tp_that_does_not_divide(change: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(PartitionError) as caught:
        Scenario(**{"model": "8b", **change})
    assert message in caught.value.message
    assert caught.value.hint.endswith(hint)
    assert caught.value.exit_code == 3


def test_too_few_gpus() -> None:
    with pytest.raises(UsageError) as caught:
        Scenario(tp=16)
    assert caught.value.message == "tp 16 needs 16 GPUs: there are 1 x 8"
    assert caught.value.hint == "add nodes (--nodes 2), or use --tp 8 or less"
    assert caught.value.exit_code == 2


def test_group_across_nodes_fills_them() -> None:
    model = dataclasses.replace(catalog.model("8b"), heads=24, kv_heads=12, intermediate=12288)
    assert Scenario(model=model, tp=12, nodes=2, gpus_per_node=6).tp_degrees() == (1, 2, 3, 4, 6, 12)
    with pytest.raises(UsageError, match="tp 12 on nodes of 8 GPUs") as caught:
        Scenario(model=model, tp=12, nodes=2)
    assert caught.value.exit_code == 2
    assert Scenario(model=model, tp=6, nodes=2).tp_degrees() == (1, 2, 3, 4, 6)


def test_warnings() -> None:
    assert scenario_warnings(Scenario(nodes=2)) == ("8 KV heads on 16 ranks: each KV head is held by 2 ranks",)
    assert scenario_warnings(Scenario(model="llama-3.1-405b-kv16", nodes=2)) == ()
    assert scenario_warnings(Scenario(cluster="a100-sxm-hdr", dtype="fp8")) == (
        "A100 SXM4 80GB has no fp8 tensor cores: fp8 saves memory and its traffic, and is multiplied at the rate of "
        "bf16",
    )
    for typed, warned in (("3958TFLOP/s", True), ("1978.9TFLOP/s", False), ("1000TFLOP/s", False)):
        texts = scenario_warnings(Scenario(dtype="fp8", overrides={"gpu.fp8": typed}))
        sparse = "gpu.fp8 is above the dense peak of H100 SXM5 80GB: it may be the figure with sparsity"
        assert texts == ((sparse,) if warned else ())
    assert scenario_warnings(Scenario(dtype="fp16")) == (
        "fp16 uses the bf16 tables: the same bytes and tensor-core rate",
    )
    assert scenario_warnings(Scenario(model="1b", prompt=2048, gen=1)) == (
        "context of 2049 tokens: 'ladder-1b' was made for 2048",
    )
    assert scenario_warnings(Scenario(tp=8, nodes=2)) == ("tp 8 uses 1 of 2 nodes",)


def test_published_70b_rows_are_scenarios_that_fit() -> None:
    """Weights, replicated embedding and head, KV cache and overhead of every published row leave room on 80 GB."""
    rows = {(row.configuration.tp, row.configuration.batch) for row in read_dataset().measurements}
    assert (2, 4) in rows
    for tp, batch in rows | {(1, 1)}:
        scenario = Scenario(model="70b", tp=tp, batch=batch, dtype="fp16")
        model = scenario.model
        replicated = 2 * model.vocab * model.hidden
        weights = ((model.parameters - replicated) / tp + replicated) * 2
        cache = KV_BYTES_PER_TOKEN / tp * scenario.workload.context * batch
        used = weights + cache + scenario.stack.memory_overhead_bytes
        assert (used < scenario.cluster.gpu.hbm_bytes) == (tp > 1), (tp, batch)


def test_cluster_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        catalog.cluster("h100-sxm").gpus_per_node = 4  # type: ignore[misc]
    assert isinstance(catalog.cluster("h100-sxm"), ClusterSpec)


@pytest.mark.parametrize("name", ["h800", "a100-pcie", "b300-pcie", "mi250x"])
def test_another_product_is_not_suggested(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalog.cluster(name)
    assert "did you mean" not in caught.value.hint


def test_the_part_before_the_dash_is_a_whole_name() -> None:
    assert [catalog.cluster(name).name for name in ("h20", "h200")] == ["h20-sxm", "h200-sxm"]


def test_another_precision_is_not_suggested() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Scenario(dtype="fp6")
    assert caught.value.hint == "known: bf16, fp16, fp8, fp8-block, fp8-dynamic, mxfp4, nvfp4, w4a16"


def test_links_slower_than_any_network_are_numbers_in_another_unit() -> None:
    """Regression: 900b/s for 900 GB/s made TPOT 6,272 s."""
    with pytest.raises(SpecError, match=r"'intra': bandwidth_Bps is 112\.5: must be a number from 100000"):
        Scenario(model="8b", tp=2, overrides={"intra.bandwidth": "900b/s"})
