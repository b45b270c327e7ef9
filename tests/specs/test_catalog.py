"""The catalogs as a whole: figures cited and possible, every combination predicted or refused with a reason."""

import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs.collectives import fabrics
from ladder_sim.costs.collectives.fabrics import FabricCurve, fabric_curve
from ladder_sim.costs.lookup import ErrorStats
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, shipped_profiles
from ladder_sim.errors import LadderSimError, SpecError, UnknownNameError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import GpuSpec
from tests.conftest import REPO
from tests.support.commands import run
from tests.support.predict_one import predict_one

# fabrics with a sweep
SWEEPS = sorted(file.stem for file in (Path(fabrics.__file__).parents[1] / "data" / "fabrics").glob("*.toml"))
CLUSTERS = catalog.cluster_names()
# of the published checkpoints
PARAMETERS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "mistral-7b": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "yi-34b": 34_388_917_248,
    "mistral-large-123b": 122_610_069_504,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    # counted without layers that predict further tokens, and without vision
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "deepseek-r1": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "glm-4.5": 352_797_829_024,
    "glm-4.5-air": 106_852_251_264,
    "glm-4.6": 352_797_829_024,
    "kimi-k2": 1_026_408_232_448,
    "minimax-m2.5": 228_689_764_864,
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
}
# fabrics of which no two-node log is shipped
WITHOUT_CURVE = {"ib-xdr800", "roce-200", "roce-400"}
# without attention and collectives: tests/tools/test_aiter.py has their bounds
AITER = ("mi300x", "mi355x", "mi355x-vllm")


def test_short_names_are_of_models() -> None:
    assert set(catalog.MODEL_ALIASES.values()) <= set(catalog.model_names())


# counts of model cards, papers and names, by their sources in the files; none is known of Kimi K3, MiniMax M3, Step 3.7
BILLIONS = {
    "deepseek-v3.2": 671,
    "deepseek-v4-flash": 284,
    "gemma-4-26b-a4b": 25.2,
    "gemma-4-31b": 31,
    "glm-5": 744,
    "glm-5.2": 744,
    "kimi-linear-48b-a3b": 49,
    "mimo-v2-flash": 309,
    "nemotron-3-nano-30b-a3b": 31.6,
    "nemotron-3-super-120b-a12b": 120,
    "nemotron-3-ultra-550b-a55b": 550,
    "qwen3-coder-480b-a35b": 480,
    "qwen3-next-80b-a3b": 80,
    "qwen3.5-122b-a10b": 122,
    "qwen3.5-27b": 27,
    "qwen3.5-35b-a3b": 35,
    "qwen3.5-397b-a17b": 397,
}


@pytest.mark.parametrize("name", BILLIONS)
def test_published_totals(name: str) -> None:
    assert catalog.model(name).parameters == pytest.approx(BILLIONS[name] * 1e9, rel=0.01)


def test_a_published_total_of_two_digits() -> None:
    """DeepSeek-V4-Pro's model card says 1.6T."""
    assert f"{catalog.model('deepseek-v4-pro').parameters / 1e12:.1f}" == "1.6"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in catalog.model_names() if catalog.model(name).origin])
def test_a_listed_model_answers_by_its_id(name: str) -> None:
    """With the default engine, and what its times are based on; what an error names fits."""
    hub_id = catalog.model_config(name)["_ids"][0]
    asked = ("predict", "--model", hub_id, "--variant", "standard")
    answer = run(*asked)
    if answer.code == 3:
        (plan,) = re.findall(r"--nodes \d+ --tp \d+", answer.err)
        answer = run(*asked, *plan.split())
    assert answer.code == 0, answer.err
    assert re.search(r"of standard's time \d+% measured", " ".join(answer.out.split()))


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_parameter_counts(name: str) -> None:
    assert catalog.model(name).parameters == PARAMETERS[name]


def test_models_whose_heads_are_set_apart() -> None:
    qwen3 = catalog.model("qwen3-32b")
    assert qwen3.heads * qwen3.head_dim == 8192
    assert qwen3.hidden == 5120
    assert catalog.model("qwen2.5-7b").qkv_bias
    assert catalog.model("llama-3.2-1b").tied_embeddings
    windowed = {name.partition("-")[0] for name in catalog.model_names() if catalog.model(name).sliding_window}
    assert windowed == {"gemma", "gpt", "llama"}


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_model_and_stack_predicts_or_is_refused_with_a_reason(cluster: str) -> None:
    predicted = 0
    for model in catalog.model_names():
        for stack in catalog.stack_names():
            try:
                found = smallest_that_fits(model, cluster, stack)
            except LadderSimError as error:
                assert error.message  # noqa: PT017
                assert error.hint  # noqa: PT017
                continue
            predicted += 1
            for one in found.values():
                assert math.isfinite(one.request_s)
                assert one.request_s > 0
            assert 0.5 < found["ladder"].speedup.value < 10, (model, stack)
    assert predicted > 2 * len(catalog.model_names())


def smallest_that_fits(model: str, cluster: str, stack: str) -> dict[str, object]:
    """Predict on one node, or where the model does not fit, on two; raises the second refusal."""
    for nodes in (1, 2):
        most = nodes * min(catalog.cluster(cluster).gpus_per_node, 8)
        degrees = [tp for tp in catalog.model(model).tp_degrees(most) if tp <= 8 or tp % 8 == 0]
        try:
            scenario = Scenario(
                model=model, cluster=cluster, stack=stack, nodes=nodes, tp=degrees[-1], prompt=128, gen=4
            )
            return dict(predict(scenario, ["standard", "ladder"]))
        except LadderSimError:
            if nodes == 2:
                raise
    raise AssertionError("a loop that returns or raises")


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_figures_are_possible(name: str) -> None:
    spec = catalog.cluster(name)
    gpu = spec.gpu
    assert 1e14 < gpu.bf16_flops <= gpu.fp8_flops < 1e16
    assert gpu.fp8_flops in (gpu.bf16_flops, pytest.approx(2 * gpu.bf16_flops, rel=0.02))
    assert 40e9 < gpu.hbm_bytes < 310e9
    assert 0.5e12 < gpu.hbm_bandwidth_Bps < 10e12
    assert 78 <= gpu.sms <= 304
    assert 1e-6 < gpu.kernel_s < 5e-6
    # a node's links are no slower than the network's, and going through host memory is slower than not
    assert spec.host.bandwidth_Bps < spec.intra.bandwidth_Bps
    assert spec.inter.bandwidth_Bps <= spec.intra.bandwidth_Bps
    assert spec.inter.bandwidth_Bps < 101e9
    assert spec.intra.allreduce_floor_s < spec.inter.allreduce_floor_s
    assert spec.intra.allreduce_floor_s < spec.host.allreduce_floor_s
    assert 10e-6 < spec.intra.allreduce_floor_s < 40e-6
    assert 20e-6 < spec.inter.allreduce_floor_s < 200e-6
    assert spec.profile in shipped_profiles()
    if spec.intra.fully_connected:
        assert 250e9 < spec.intra.bandwidth_Bps < 1e12
    else:
        assert spec.intra.bandwidth_Bps < 64e9
    assert spec.intra.mesh_links in (0, spec.gpus_per_node - 1)


@pytest.mark.parametrize("name", ["l40s-pcie", "rtx-pro-6000", "h100-pcie"])
def test_nvls_needs_a_switch(name: str) -> None:
    with pytest.raises(UsageError, match="needs an NVLink switch"):
        predict(Scenario(model="8b", cluster=name, allreduce="nvls"), ["standard"])


def test_catalog_page_lists_everything() -> None:
    page = (REPO / "docs" / "catalog.md").read_text("utf-8")
    # an engine's profile has the GPU's name before its own
    engines = tuple(f"-{name}" for name in catalog.stack_names())
    profiles = [name for name in shipped_profiles() if not any(engine in name for engine in engines)]
    for name in (*catalog.model_names(), *catalog.cluster_names(), *profiles, *SWEEPS):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("name", shipped_profiles())
def test_profiles_were_measured_on_catalog_clusters(name: str) -> None:
    profile = load_profile(name)
    gpu = profile.cluster.gpu
    assert profile.cluster.profile == profile.tables_of
    assert profile.reference.bf16_flops == pytest.approx(gpu.bf16_flops, rel=0.001)
    assert profile.reference.fp8_flops == pytest.approx(gpu.fp8_flops, rel=0.001)
    # the package draws the Server Edition's roofline with the Workstation Edition's bandwidth
    drawn_off = 0.13 if profile.tables_of == "rtx-pro-6000" else 0.001
    assert profile.reference.hbm_bandwidth_Bps == pytest.approx(gpu.hbm_bandwidth_Bps, rel=drawn_off)
    assert profile.reference.kernel_s == pytest.approx(gpu.kernel_s, rel=0.03)
    assert all(part.citation and part.licence in ("Apache-2.0", "MIT") for part in profile.sources)


@pytest.mark.parametrize("name", sorted(set(shipped_profiles()) - set(AITER)))
def test_profiles_interpolate_within_their_bounds(name: str) -> None:
    profile = load_profile(name)
    gemm = profile.gemm["bf16"].left_out["aggregated"]
    assert gemm.rows > 1000
    assert gemm.median <= 0.05
    for what, error in attention_and_all_reduce(profile):
        assert error.rows > 0, what
        assert error.median <= 0.08, what


def attention_and_all_reduce(profile: CalibrationProfile) -> Iterator[tuple[str, ErrorStats]]:
    for what, tables in (("prefill", profile.attention_prefill), ("decode", profile.attention_decode)):
        yield what, tables["flash"]["bf16"].left_out["aggregated"]
    for algorithm, curves in profile.collectives["all_reduce"].items():
        for ranks, curve in curves.items():
            yield f"{algorithm}, {ranks} GPUs", curve.left_out["aggregated"]


def test_fabrics() -> None:
    measured_on = {name: shipped(name).cluster for name in SWEEPS}
    assert set(measured_on) == {catalog.cluster(name).inter.fabric for name in CLUSTERS} - WITHOUT_CURVE
    for fabric, cluster in measured_on.items():
        assert cluster.inter.fabric == fabric
    assert fabric_curve("roce-200") is None


def shipped(name: str) -> FabricCurve:
    found = fabric_curve(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", SWEEPS)
def test_fabric_curves(name: str) -> None:
    fabric = shipped(name)
    assert (fabric.nodes, fabric.ranks_per_node) == (2, 8)
    assert "nccl-tests" in fabric.source
    sizes, seconds = fabric.curve.size_bytes, fabric.curve.seconds
    assert 9 <= len(sizes) <= 16
    assert sizes[0] <= 1024
    assert sizes[-1] >= 2**31
    # a protocol may beat the one before it by a little, no more
    assert (np.diff(seconds) / seconds[:-1] > -0.05).all()
    # the floor in the cluster is that of the curve's smallest sizes, or within its first steps
    floor_s = fabric.cluster.inter.allreduce_floor_s
    assert seconds[0] * 0.95 < floor_s < seconds[sizes <= 8192][-1] * 1.05


FABRIC = """source = "own measurement"
cluster = "h100-sxm"
nodes = 2
ranks_per_node = 8
bytes = [1024, 1048576, 1073741824]
time_us = [30.0, 35.0, 4000.0]
"""


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_fabric_of_ones_own(tmp_path: Path) -> None:
    # sizes far from those of a sweep are the catalog's
    dense = FABRIC.replace("[1024, ", "[1024, 32768, ").replace("[30.0, ", "[30.0, 31.0, ")
    path = write(tmp_path / "fast.toml", dense)
    found = shipped(path)
    assert found.curve.seconds[0] == pytest.approx(30e-6)
    slow, fast = (
        predict_one(Scenario(model="70b", nodes=2, overrides=overrides)).request_s
        for overrides in ({}, {"inter.fabric": path})
    )
    assert fast < slow
    # a file that is rewritten is read again
    write(tmp_path / "fast.toml", dense.replace("30.0", "32.25"))
    assert shipped(path).curve.seconds[0] == pytest.approx(32.25e-6)


def test_a_cluster_file_of_an_earlier_version(tmp_path: Path) -> None:
    """It tells a switch by its fabric's name."""
    text = (REPO / "ladder_sim" / "specs" / "data" / "clusters" / "h100-sxm.toml").read_text("utf-8")
    old = text.replace("switch = true\n", "")
    assert old.count("switch = ") == 0
    spec = catalog.cluster(write(tmp_path / "h100-sxm.toml", old))
    assert spec == catalog.cluster("h100-sxm")
    assert not catalog.cluster(write(tmp_path / "pcie.toml", old.replace("nvlink4-nvswitch", "pcie5"))).intra.switch


def test_a_cluster_names_its_fabric_relative_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    original = (REPO / "ladder_sim" / "specs" / "data" / "clusters" / "h100-sxm.toml").read_text("utf-8")
    write(tmp_path / "deep" / "mine.toml", original.replace('"ib-ndr400"', '"fast.toml"'))
    write(tmp_path / "deep" / "fast.toml", FABRIC)
    monkeypatch.chdir(tmp_path)
    spec = catalog.cluster("deep/mine.toml")
    assert Path(spec.inter.fabric) == Path("deep/fast.toml")
    assert catalog.cluster_or_stack("deep/mine.toml") == spec
    assert shipped(spec.inter.fabric).nodes == 2


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("nodes =", "not valid TOML"),
        (FABRIC.replace("nodes = 2\n", ""), "nodes is missing"),
        (FABRIC.replace("nodes = 2\n", "nodes = 1\n"), "nodes is 1: must be a whole number from 2"),
        (FABRIC.replace("ranks_per_node = 8", "ranks_per_node = 0.5"), "ranks_per_node is 0.5"),
        (FABRIC.replace("ranks_per_node = 8", "ranks_per_node = 9"), "ranks_per_node is 9"),
        (FABRIC.replace("[30.0, 35.0, 4000.0]", "[30.0, 35.0]"), "3 bytes but 2 time_us"),
        (FABRIC.replace("30.0", "0"), "time_us[0] is 0: must be a number above 0"),
        (FABRIC.replace("30.0", "nan"), "time_us[0] is nan"),
        (FABRIC.replace("30.0", "'30'"), "time_us[0] is '30'"),
        (FABRIC.replace("[1024, 1048576", "[1048576, 1024"), "bytes[1] is 1024 after 1.04858e+06: sizes must increase"),
        (FABRIC.replace("[1024, 1048576, 1073741824]", "7"), "bytes is 7: must be a list"),
        (FABRIC.replace("own measurement", " "), "source is ' '"),
    ],
)
def test_bad_fabric_file(tmp_path: Path, text: str, rule: str) -> None:
    path = write(tmp_path / "bad.toml", text)
    with pytest.raises(SpecError) as caught:
        fabric_curve(path)
    assert caught.value.message.startswith(path)
    assert rule in caught.value.message
    assert caught.value.hint


def test_fabric_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        predict(Scenario(model="8b", nodes=2, overrides={"inter.fabric": str(tmp_path / "no.toml")}), ["standard"])
    path = write(tmp_path / "x.toml", FABRIC.replace("h100-sxm", "h100-smx"))
    with pytest.raises(UnknownNameError, match="h100-smx"):
        fabric_curve(path)


def test_clusters_of_one_gpu_have_its_figures() -> None:
    """Regression: h100-crusoe had no compute capability, and TensorRT-LLM was said not to run there."""
    gpus: dict[str, GpuSpec] = {}
    for name in catalog.cluster_names():
        gpu = dataclasses.replace(catalog.cluster(name).gpu, source="")
        assert gpus.setdefault(gpu.name, gpu) == gpu, name
