"""Tables of experts and latent attention, from a small made-up package and from the real one where it is at hand."""

import itertools
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ladder_sim.costs import profile_file
from ladder_sim.costs.experts import ANY_LAYER
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.moe_file import read_moe
from ladder_sim.costs.profile import MoeTables
from ladder_sim.costs.profile_file import MOE_FOLDER, load_profile, shipped_profiles
from ladder_sim.kernels import Experts
from tests.support.profile_files import check_same
from tools.profiles.aiconfigurator import ENGINES, SYSTEMS
from tools.profiles.clean_experts import by_splits, weights_read_bytes
from tools.profiles.grids import Series
from tools.profiles.moe import TOKENS, MoeMeasurements, make_engine_moe, make_moe, read_moe_system, write_moe

YAML = "gpu:\n  mem_bw: 3.35e12\n  bfloat16_tc_flops: 989e12\nnode:\n  num_gpus_per_node: 8\n"
VERSIONS = {"vllm": "0.24.0", "trtllm": "1.3.0rc20", "sglang": "0.5.14"}
QWEN = {"hidden_size": 4096, "inter_size": 1536, "num_experts": 128, "topk": 8}
MIXTRAL = {"hidden_size": 4096, "inter_size": 14336, "num_experts": 8, "topk": 2}
OF_QWEN = Experts("fp8-block", 4096, 1536, 128, 8)
V3 = {"hidden_size": 7168, "num_experts": 256}


def test_no_split_takes_far_longer_than_others_allow() -> None:
    """Guards against splits whose kernel a tuner missed: Llama 4 Scout's experts in fp8 on H100, in microseconds."""
    measured = {(1, 1): 1847, (1, 2): 215, (2, 1): 1000, (2, 2): 136, (4, 1): 123, (4, 2): 82, (4, 4): 176}
    points = np.array([(*split, 16.0) for split in measured])
    series = Series(label="trtllm 1.3.0rc20", points=points, seconds=np.array(list(measured.values()), float))
    # twice those of a rank with half as much, and no more than those of one with twice as much
    allowed = [430, 215, 246, 136, 123, 82, 82]
    assert by_splits(series, np.zeros(7)).seconds.tolist() == allowed
    # where halves were read from a large cache, what reading the whole from memory takes
    assert by_splits(series, np.full(7, 300.0)).seconds.tolist() == [430, 215, 300, 136, 123, 82, 176]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def expert_rows(version: str, slower: float = 1.0, layer: dict[str, int] | None = None) -> list[dict[str, Any]]:
    rows = []
    for expert_tp, ep, tokens in itertools.product([1, 2], [1, 2, 128], [1, 2, 4, 16, 64, 256, 1024, 4096]):
        split = {"moe_tp_size": expert_tp, "moe_ep_size": ep, "num_tokens": tokens}
        milliseconds = slower * (1.0 + 0.001 * tokens / (expert_tp * ep))
        row = {**(layer or QWEN), **split, "moe_dtype": "fp8_block", "version": version, "kernel_source": "main"}
        for distribution, factor in (("balanced", 0.8), ("power_law_1.01", 1.0), ("power_law_1.2", 1.25)):
            rows.append({**row, "distribution": distribution, "latency": milliseconds * factor})
        # a kernel that is slower, which the engine does not take; and a failed measurement
        rows.append({**rows[-2], "kernel_source": "other", "latency": 90.0})
        rows.append({**rows[-2], "kernel_source": "failed", "latency": float("nan")})
    return rows


def in_format(dtype: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "moe_dtype": dtype} for row in rows]


def mla_rows(phase: str, slower: float) -> list[dict[str, Any]]:
    rows = []
    for batch, heads, length in itertools.product([1, 4, 16, 64], [8, 16, 64, 128], [16, 64, 256, 1024, 4096]):
        step = {"isl": 1, "step": length - 1} if phase == "generation" else {"isl": length, "step": 0}
        sizes = {"batch_size": batch, "num_heads": heads, **step}
        seconds = 8e-6 + 1e-10 * batch * length * (1 if phase == "generation" else heads)
        rows += [
            {**sizes, "kv_cache_dtype": "bfloat16", "latency": seconds * slower * 1e3, "version": "x"},
            {**sizes, "kv_cache_dtype": "fp8", "latency": seconds * slower * 5e2, "version": "x"},
        ]
    return rows


def bmm_rows() -> list[dict[str, Any]]:
    return [
        {"bmm_dtype": "bfloat16", "op_name": op, "num_heads": heads, "num_tokens": tokens, "latency": 0.004}
        for op in ("mla_gen_pre", "mla_gen_post")
        for heads, tokens in itertools.product([8, 16, 64, 128], [1, 4, 16, 64, 256])
    ]


def deepep_rows() -> list[dict[str, Any]]:
    return [
        {**V3, "num_topk": 8, "num_token": count, "node_num": nodes, "version": "0.5.0"}
        | {"dispatch_avg_t_us": 10.0 * nodes + count, "combine_avg_t_us": 20.0 * nodes + count}
        for nodes, count in itertools.product([1, 2], [1, 4, 16, 64])
    ]


def a2a_rows() -> list[dict[str, Any]]:
    return [
        {**V3, "topk": 8, "num_tokens": count, "ep_size": 8, "comm_backend": backend, "phase": phase}
        | {"comm_dtype": dtype, "latency": 30.0 + count, "version": "1.3.0rc11"}
        for backend, phase, dtype, count in itertools.product(
            ["trtllm_deepep_ll", "unknown"], ["dispatch", "combine"], ["bfloat16", "nvfp4"], [1, 16, 256]
        )
    ]


def nvlink_rows() -> list[dict[str, Any]]:
    return [
        {**V3, "topk": 8, "num_tokens": count, "moe_ep_size": 16, "moe_dtype": "nvfp4", "version": "1.2.0rc6"}
        | {"kernel_source": kernel, "op_name": f"alltoall_{op}", "latency": latency}
        for kernel, op, latency, count in itertools.product(
            ["NVLinkTwoSided"], ["prepare", "dispatch", "combine"], [0.01], [1, 16, 256]
        )
    ]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two systems, of which the second holds a copy of the first's DeepEP."""
    systems = tmp_path_factory.mktemp("package") / "systems"
    for system in ("h100_sxm", "h200_sxm"):
        data = systems / "data" / system
        (systems / f"{system}.yaml").parent.mkdir(parents=True, exist_ok=True)
        (systems / f"{system}.yaml").write_text(YAML)
        for engine, slower in (("vllm", 1.0), ("trtllm", 3.0), ("sglang", 1.2)):
            rows = expert_rows(VERSIONS[engine], slower)
            if engine == "sglang":
                # its balanced rows with EP compute the tokens of all ranks on each
                for row in rows:
                    if row["distribution"] == "balanced" and row["moe_ep_size"] > 1:
                        row["latency"] = 50.0
            if engine == "vllm":
                # one point that the kernels never took
                for row in rows:
                    at = row["moe_tp_size"], row["moe_ep_size"], row["num_tokens"]
                    if at == (1, 1, 256) and row["kernel_source"] == "main":
                        row["latency"] *= 20
            if engine != "sglang":
                rows += in_format("fp8", rows)
            mxfp4 = expert_rows(VERSIONS[engine], slower)
            rows += in_format("w4a16_mxfp4", mxfp4)
            if engine == "trtllm":
                # in half the time, and without rows of experts on two ranks
                faster = [{**row, "latency": 0.5 * row["latency"] / slower} for row in mxfp4]
                rows += in_format("w4a8_mxfp4_mxfp8", [row for row in faster if row["moe_ep_size"] != 2])
            if engine == "sglang":
                rows += in_format("w4a8_mxfp4_mxfp8", mxfp4)
            write(data / "moe" / engine / VERSIONS[engine] / "moe_perf.parquet", rows)
            write(data / "mla_bmm" / engine / VERSIONS[engine] / "mla_bmm_perf.parquet", bmm_rows())
        # a newer file with another layer alone, and an older one with everything
        newer = expert_rows("1.3.0rc23", layer=MIXTRAL)
        write(data / "moe" / "trtllm" / "1.3.0rc23" / "moe_perf.parquet", newer)
        older = expert_rows("0.19.1", 7.0)
        write(data / "moe" / "vllm" / "0.19.0" / "moe_perf.parquet", [*older, *in_format("int4_wo", older)])
        for engine, slower in (("trtllm", 1.0), ("sglang", 2.0)):
            for phase in ("context", "generation"):
                path = data / "mla" / engine / VERSIONS[engine] / f"{phase}_mla_perf.parquet"
                kernel = "flash_attention" if (system, engine) == ("h200_sxm", "sglang") else "trtllm_mla"
                write(path, [{**row, "kernel_source": kernel} for row in mla_rows(phase, slower)])
        write(data / "comm" / "sglang" / "0.5.6.post2" / "wideep_deepep_ll_perf.parquet", deepep_rows())
        write(data / "comm" / "trtllm" / "1.3.0rc11" / "moe_a2a_perf.parquet", a2a_rows())
        write(data / "comm" / "trtllm" / "1.3.0rc10" / "trtllm_alltoall_perf.parquet", nvlink_rows())
    return systems


@pytest.fixture(scope="module")
def measured(package: Path) -> MoeMeasurements:
    return read_moe_system("h100_sxm", load_profile("h100-sxm"), package)


@pytest.fixture(scope="module")
def of_gpu(measured: MoeMeasurements) -> MoeTables:
    return make_moe(measured, load_profile("h100-sxm"))


def of_engine(measured: MoeMeasurements, of_gpu: MoeTables, engine: str, folder: Path) -> MoeTables:
    """As it is read from its file."""
    reference = load_profile("h100-sxm").reference
    own = make_engine_moe(measured, engine, of_gpu, reference)
    write_moe(own, folder / engine, name=engine, created="2026-11-22", base=of_gpu, reference=reference)
    return read_moe(str(folder / engine), reference, of_gpu)


def cell(table: RatioTable, *at: float) -> float:
    """Milliseconds."""
    index = tuple(int(np.searchsorted(axis, value)) for axis, value in zip(table.axes, at, strict=True))
    return float(table.seconds[index]) * 1e3


def test_a_gpu_has_the_median_and_no_engine_is_above_it(
    measured: MoeMeasurements, of_gpu: MoeTables, tmp_path: Path
) -> None:
    """TensorRT-LLM on Blackwell was measured with a kernel that it does not take by itself, at three times the time."""
    vllm, trtllm, sglang = (
        of_engine(measured, of_gpu, engine, tmp_path).experts[OF_QWEN] for engine in ("vllm", "trtllm", "sglang")
    )
    assert cell(of_gpu.experts[OF_QWEN], 1, 1, 64) == pytest.approx(1.2 * 1.064, rel=0.01)
    assert cell(trtllm, 1, 1, 64) == cell(sglang, 1, 1, 64) == cell(of_gpu.experts[OF_QWEN], 1, 1, 64)
    assert cell(vllm, 1, 1, 64) == pytest.approx(1.064, rel=0.02)


def test_mxfp4_experts_meet_the_activations_that_their_engine_gives_them(
    measured: MoeMeasurements, of_gpu: MoeTables, tmp_path: Path
) -> None:
    """In MXFP8 in TensorRT-LLM and SGLang, in 16 bits in vLLM; of the GPU, whose engine is not known, in 16 bits."""
    key = OF_QWEN._replace(format="mxfp4")
    vllm, trtllm, sglang = (
        of_engine(measured, of_gpu, engine, tmp_path).experts[key] for engine in ("vllm", "trtllm", "sglang")
    )
    plain = cell(of_gpu.experts[key], 1, 1, 64)
    assert cell(trtllm, 1, 1, 64) == pytest.approx(0.5 / 1.2 * plain, rel=0.02)
    assert cell(vllm, 1, 1, 64) == pytest.approx(plain / 1.2, rel=0.02)
    assert cell(sglang, 1, 1, 64) == pytest.approx(plain, rel=0.02)
    # a split that TensorRT-LLM was not measured in is the other's, whose kernels are the same library's
    assert cell(trtllm, 1, 2, 64) == pytest.approx(cell(sglang, 1, 2, 64), rel=0.02)


def test_the_fastest_kernel_of_the_newest_version_that_measured_a_layer(measured: MoeMeasurements) -> None:
    assert {engine: series.label for engine, series in measured.experts[OF_QWEN].items()} == {
        "vllm": "vllm 0.24.0",
        "trtllm": "trtllm 1.3.0rc20",
        "sglang": "sglang 0.5.14",
    }
    of_mixtral = Experts("fp8-block", 4096, 14336, 8, 2)
    assert {engine: series.label for engine, series in measured.experts[of_mixtral].items()} == {
        "trtllm": "trtllm 1.3.0rc23"
    }
    series = measured.experts[OF_QWEN]["sglang"]
    at = (series.points == (1, 2, 256)).all(axis=1)
    assert series.seconds[at] * 1e3 == pytest.approx([1.2 * (1.0 + 0.001 * 128)])


def test_no_time_falls_as_tokens_are_added(measured: MoeMeasurements) -> None:
    series = measured.experts[OF_QWEN]["vllm"]
    whole = series.seconds[(series.points[:, :2] == 1).all(axis=1)]
    assert (np.diff(whole) >= 0).all()
    # the point in between takes at most as long as more tokens
    assert whole[5] == whole[6] == pytest.approx(2.024e-3)


def test_no_time_is_below_what_reading_the_weights_takes() -> None:
    """Calls that repeat find them in a large cache. One token reads top-k experts, many read all."""
    points = np.array([[1.0, 1.0, 1.0], [2.0, 4.0, 1e5]])
    read = weights_read_bytes(
        OF_QWEN._replace(imbalance="balanced"), Series(label="", points=points, seconds=np.ones(2))
    )
    expert_bytes = 3 * 4096 * 1536 * (1 + 4 / 128**2)
    assert read.tolist() == pytest.approx([8 * expert_bytes, 128 * expert_bytes / 8])
    uneven = weights_read_bytes(OF_QWEN, Series(label="", points=points, seconds=np.ones(2)))
    assert uneven[0] < read[0]


def test_larger_groups_than_tables_have_are_left_out(measured: MoeMeasurements) -> None:
    assert {tuple(point) for point in measured.experts[OF_QWEN]["vllm"].points[:, :2]} == {
        (1, 1), (1, 2), (2, 1), (2, 2),
    }  # fmt: skip


def test_balanced_rows_of_sglang_with_ep_are_left_out(measured: MoeMeasurements, of_gpu: MoeTables) -> None:
    balanced = OF_QWEN._replace(imbalance="balanced")
    assert set(measured.experts[balanced]["sglang"].points[:, 1]) == {1.0}
    factors = of_gpu.experts[ANY_LAYER._replace(experts=128, top_k=8, imbalance="balanced")]
    np.testing.assert_allclose(factors.seconds[np.isfinite(factors.seconds)], 0.8)
    skewed = of_gpu.experts[ANY_LAYER._replace(experts=128, top_k=8, imbalance="power-law-1.2")]
    np.testing.assert_allclose(skewed.seconds[np.isfinite(skewed.seconds)], 1.25)


def test_fp8_blocks_of_sglang_with_ep_are_left_out_above_1000_tokens(measured: MoeMeasurements) -> None:
    points = measured.experts[OF_QWEN]["sglang"].points
    assert points[points[:, 1] == 1][:, 2].max() == 4096
    assert points[points[:, 1] == 2][:, 2].max() == 256
    assert any(note.startswith("experts fp8-block with EP without sglang 0.5.14: up to") for note in measured.notes)


def test_kernels_that_engines_do_not_take_are_left_out(measured: MoeMeasurements) -> None:
    """vLLM's fp8 kernel that was not tuned on Hopper, and its 4-bit one before Marlin's."""
    assert measured.experts[OF_QWEN._replace(format="fp8")].keys() == {"trtllm"}
    assert OF_QWEN._replace(format="w4a16") not in measured.experts
    assert len([note for note in measured.notes if note.startswith(("experts fp8 without", "experts w4a16"))]) == 2


def test_what_an_engine_has_not_measured_is_transferred(
    measured: MoeMeasurements, of_gpu: MoeTables, tmp_path: Path
) -> None:
    """vLLM's latent attention is measured as whole modules, launches included, which is not used."""
    vllm = of_engine(measured, of_gpu, "vllm", tmp_path)
    sglang = of_engine(measured, of_gpu, "sglang", tmp_path)
    point = {"batch": 4, "heads": 16, "kv_len": 1024, "latent": 512, "rope": 64}
    at = {of: of.tables["mla_decode"]["fp8"].ratio(**point) for of in (of_gpu, vllm, sglang)}
    assert at[vllm][0] == at[of_gpu][0] == pytest.approx(at[sglang][0] / 2)
    assert (bool(at[of_gpu][1]), bool(at[vllm][1]), bool(at[sglang][1])) == (True, False, True)
    assert vllm.tables["mla_decode"]["fp8"].beyond == "transferred"
    mixtral = vllm.experts[Experts("fp8-block", 4096, 14336, 8, 2)]
    assert not mixtral.ratio(expert_tp=1, ep=1, tokens=64)[1]


def test_prompts_in_the_absorbed_form_are_left_out(package: Path, measured: MoeMeasurements) -> None:
    """Regression: SGLang's prompts of DeepSeek on Hopper had the arithmetic of decode, 3.4 times its servers'."""
    hopper = read_moe_system("h200_sxm", load_profile("h200-sxm"), package)
    for tables, prompts in ((measured.tables, {"sglang", "trtllm"}), (hopper.tables, {"trtllm"})):
        assert {series.engine for series in tables["mla_prefill", "bf16"]} == prompts
        assert {series.engine for series in tables["mla_decode", "bf16"]} == {"sglang", "trtllm"}
    assert any("prompts in the absorbed form" in note for note in hopper.notes)


@pytest.mark.parametrize("name", [name for name in shipped_profiles() if "a100" not in name])
def test_prompts_of_latent_attention_take_less_than_the_absorbed_form_would(name: str) -> None:
    """At the largest sizes, at the GPU's peak."""
    for of, table in load_profile(name).moe.tables.get("mla_prefill", {}).items():
        sizes = {axis: float(values[-1]) for axis, values in zip(table.names, table.axes, strict=True)}
        absorbed = (2 * 512 + 64) / (128 + 64 + 128)
        assert table.ratio(**sizes)[0] < absorbed, of


def test_dispatch_is_measured_by_the_tokens_of_a_rank_in_each_files_own_unit(
    measured: MoeMeasurements, of_gpu: MoeTables
) -> None:
    """Experts count the tokens of all ranks, dispatches those of one; some files have microseconds."""
    bytes_of = 16 * 8 * 7168 * 2
    reference = load_profile("h100-sxm").reference
    sglang = make_engine_moe(measured, "sglang", of_gpu, reference).collectives
    assert sglang["dispatch"]["deepep-ll"][8].seconds_at(bytes_of)[0] == pytest.approx(26e-6)
    # nodes of eight
    assert sglang["combine"]["deepep-ll"][16].seconds_at(bytes_of)[0] == pytest.approx(56e-6)
    trtllm = make_engine_moe(measured, "trtllm", of_gpu, reference).collectives
    assert trtllm["dispatch"]["deepep-ll"][8].seconds_at(bytes_of)[0] == pytest.approx(46e-6)
    # with the exchange of counts before it, in milliseconds
    assert trtllm["dispatch"]["nvlink-two-sided"][16].seconds_at(bytes_of)[0] == pytest.approx(20e-6)
    assert trtllm["combine"]["nvlink-two-sided"][16].seconds_at(bytes_of)[0] == pytest.approx(10e-6)
    assert make_engine_moe(measured, "vllm", of_gpu, reference).collectives == {}


def test_copies_of_another_gpus_files_are_left_out(package: Path, measured: MoeMeasurements) -> None:
    h200 = read_moe_system("h200_sxm", load_profile("h200-sxm"), package)
    name = "data/h200_sxm/comm/sglang/0.5.6.post2/wideep_deepep_ll_perf.parquet"
    assert f"without {name}: its times are those of h100_sxm" in h200.notes
    assert name not in h200.files
    assert "sglang" in measured.dispatches
    assert "sglang" not in h200.dispatches


def test_folders_that_misname_their_version_are_noted(measured: MoeMeasurements) -> None:
    assert [note for note in measured.notes if "say version" in note] == [
        "data/h100_sxm/moe/vllm/0.19.0/moe_perf.parquet: rows say version 0.19.1",
        "data/h100_sxm/mla/sglang/0.5.14/context_mla_perf.parquet: rows say version x",
        "data/h100_sxm/mla/trtllm/1.3.0rc20/context_mla_perf.parquet: rows say version x",
        "data/h100_sxm/mla/sglang/0.5.14/generation_mla_perf.parquet: rows say version x",
        "data/h100_sxm/mla/trtllm/1.3.0rc20/generation_mla_perf.parquet: rows say version x",
        "data/h100_sxm/comm/sglang/0.5.6.post2/wideep_deepep_ll_perf.parquet: rows say version 0.5.0",
        "data/h100_sxm/comm/trtllm/1.3.0rc10/trtllm_alltoall_perf.parquet: rows say version 1.2.0rc6",
    ]


SOURCE = os.environ.get("LADDER_TEST_AIC", "")
if SOURCE or find_spec("aiconfigurator_core"):
    # as in test_importer.py: not collected where the package is absent

    @pytest.fixture(scope="module")
    def hopper() -> MoeMeasurements:
        return read_moe_system("h100_sxm", load_profile("h100-sxm"), Path(SOURCE) if SOURCE else None)

    def test_shipped_files_are_what_the_package_gives(hopper: MoeMeasurements, tmp_path: Path) -> None:
        base = load_profile("h100-sxm")
        of_h100 = make_moe(hopper, base)
        every = {"": (of_h100, None)} | {
            f"-{engine}": (make_engine_moe(hopper, engine, of_h100, base.reference), of_h100) for engine in ENGINES
        }
        shipped = Path(profile_file.__file__).parent / "profiles" / MOE_FOLDER
        for engine, (tables, below) in every.items():
            name = f"{SYSTEMS['h100_sxm']}{engine}"
            made = tmp_path / f"{name}.json.gz"
            write_moe(tables, made, name=name, created=base.created, base=below, reference=base.reference)
            check_same(made, shipped / made.name)

    def test_outliers_of_tensorrt_llm_are_gone(hopper: MoeMeasurements) -> None:
        """At 256 tokens its bf16 kernels take two to three times as long as at 512."""
        of_h100 = make_moe(hopper, load_profile("h100-sxm"))
        for key in hopper.experts:
            if key.format == "bf16" and key in of_h100.experts:
                table = of_h100.experts[key]
                assert tuple(table.axes[2]) == TOKENS
                steps = np.diff(table.seconds, axis=2)
                # in hundredths of the roofline
                assert (steps[np.isfinite(steps)] > -0.02 * np.nanmax(table.seconds)).all()
