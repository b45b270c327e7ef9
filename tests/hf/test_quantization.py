"""`quantization_config` of published checkpoints, and what is refused."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.costs.memory import weight_bytes
from ladder_sim.errors import SpecError
from ladder_sim.hf.quantization import read_quantization
from ladder_sim.kernels import GemmShape
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from tests.conftest import DATA
from tests.support.graphs import build
from tests.support.predict_one import predict_one


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


def mixed(formats: dict[str, str]) -> dict[str, Any]:
    """Return ModelOpt's fields of modules in formats of their own."""
    layers = {f"model.layers.{name}": {"quant_algo": each} for name, each in formats.items()}
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
PER_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
INT4 = {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
# forms of configs on the Hugging Face Hub: what they hold, and the two precisions
PUBLISHED: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "Qwen3-32B-FP8": (
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate"],
        },
        "fp8-block",
        None,
    ),
    "neuralmagic, AutoFP8": (
        {"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"},
        "fp8",
        None,
    ),
    "vLLM, online": ({"activation_scheme": "dynamic", "quant_method": "fp8"}, "fp8-dynamic", None),
    "fbgemm": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        "fp8-dynamic",
        None,
    ),
    "RedHatAI, static": (compressed(FP8, FP8, kv_cache_scheme=None), "fp8", None),
    "RedHatAI, dynamic": (compressed({**FP8, "strategy": "channel"}, PER_TOKEN), "fp8-dynamic", None),
    "RedHatAI, cache": (compressed(FP8, FP8, kv_cache_scheme=FP8), "fp8", "fp8"),
    "RedHatAI, blocks": (compressed(BLOCKS, PER_TOKEN), "fp8-block", None),
    "RedHatAI, w4a16": (compressed(INT4, None, format="pack-quantized"), "w4a16", None),
    "RedHatAI, NVFP4": (compressed(FP4, FP4, format="nvfp4-pack-quantized"), "nvfp4", None),
    "NVIDIA, FP8": (
        {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "ignore": ["lm_head"],
        },
        "fp8",
        "fp8",
    ),
    "NVIDIA, NVFP4": (
        {
            "quant_method": "modelopt",
            "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        },
        "nvfp4",
        "fp8",
    ),
    "AWQ": (
        {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "modules_to_not_convert": None},
        "w4a16",
        None,
    ),
    "GPTQ": ({"bits": 4, "desc_act": True, "group_size": 128, "quant_method": "gptq"}, "w4a16", None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms(name: str) -> None:
    fields, dtype, kv_dtype = PUBLISHED[name]
    assert read_quantization({"quantization_config": fields}, "config.json", layers=2) == (dtype, kv_dtype, (), ())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("fp8", "quantization_config is 'fp8': must be an object"),
        ({"quant_method": "nf4"}, "quantization_config: quant_method is 'nf4': must be one of fp8"),
        ({"bits": 4}, "quantization_config: quant_method is None"),
        ({"quant_method": "gptq", "bits": 8}, "quantization_config: bits is 8: only 4-bit"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*q_proj": {}}}, "dynamic is {"),
        ({"quant_method": "fp8", "weight_block_size": [1, 32]}, "weight_block_size is [1, 32]"),
        # Llama-3.1-405B-FP8 leaves attention and the first layer's MLP in 16 bits
        (
            {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head", "model.layers.1.self_attn.q_proj"]},
            "modules_to_not_convert is 'model.layers.1.self_attn.q_proj': a precision that differs",
        ),
        (
            compressed(FP8, FP8, ignore=["re:.*self_attn.*", "model.layers.0.mlp.down_proj"]),
            "ignore is 'model.layers.0.mlp.down_proj': a precision that differs",
        ),
        (compressed(FP8, FP8, ignore=["re:.*layers\\\\.(0|7)\\\\..*"]), "layers of such a pattern cannot be read"),
        (compressed(FP8, FP8, ignore="lm_head"), "ignore is 'lm_head': must be a list"),
        (compressed(INT8, INT8), "config_groups.group_0 is"),
        (compressed(FP8, None), "config_groups.group_0 is"),
        (compressed(FP8, FP8, config_groups={}), "config_groups is {}: must hold a group"),
        (compressed(FP8, FP8, config_groups={"group_0": 8}), "config_groups.group_0 is 8: must say"),
        (
            compressed(
                FP8,
                FP8,
                config_groups={
                    "group_0": {"weights": FP8, "input_activations": FP8},
                    "group_1": {"weights": FP4, "input_activations": FP4},
                },
            ),
            "a mix of fp8 and nvfp4 cannot be predicted",
        ),
        (
            compressed(FP8, FP8, config_groups={"group_0": {"weights": FP8, "targets": ["re:.*(q|k|v)_proj"]}}),
            "config_groups.group_0 is",
        ),
        (
            compressed(
                FP8,
                FP8,
                config_groups={"group_0": {"weights": FP8, "input_activations": FP8, "targets": ["re:.*[qkv]_proj"]}},
            ),
            "config_groups is 're:.*[qkv]_proj': modules of such a pattern cannot be read",
        ),
        (compressed(FP8, FP8, kv_cache_scheme=INT8), "kv_cache_scheme is"),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            "quantized_layers is None: must hold the format of each module",
        ),
        ({"quant_method": "modelopt", **mixed({"0.mlp": "INT8_SQ"})}, "quant_algo is 'INT8_SQ': must be one of FP8"),
        (
            {"quant_method": "modelopt", **mixed({"0.q_proj": "FP8", "0.k_proj": "NVFP4", "0.v_proj": "FP8"})},
            "a precision that differs within a part",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"},
            "kv_cache_quant_algo is 'NVFP4': only an fp8",
        ),
    ],
)
def test_mixed_and_unknown_quantisation_is_refused(fields: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_quantization({"quantization_config": fields}, "config.json", layers=2)
    assert message in caught.value.message
    assert "--dtype" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["re:.*self_attn.*"], ("qkv", "out")),
        (["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"], ("qkv", "out")),
        (["model.layers.0.self_attn*", "model.layers.1.self_attn*", "model.layers.2*"], ("qkv", "out")),
        ([f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 1) for name in "qkv"], ("qkv",)),
        (["re:.*o_proj$"], ("out",)),
        (["re:.*mlp.*"], ("mlp", "experts")),
    ],
)
def test_parts_that_every_layer_keeps_in_16_bits(names: list[str], parts: tuple[str, ...]) -> None:
    fields = {"quant_method": "mxfp4", "modules_to_not_convert": names}
    assert read_quantization({"quantization_config": fields}, "config.json", layers=2) == ("mxfp4", None, parts, ())


@pytest.mark.parametrize(
    ("names", "every", "some"),
    [
        (["model.layers.0", "lm_head"], (), (("qkv", (0,)), ("out", (0,)), ("mlp", (0,)), ("experts", (0,)))),
        (["model.layers.1*"], (), tuple((part, (1, 10, 11)) for part in ("qkv", "out", "mlp", "experts"))),
        (["re:.*layers\\\\.11\\\\.mlp.*"], (), (("mlp", (11,)), ("experts", (11,)))),
        (["re:.*self_attn.*", "model.layers.3.mlp"], ("qkv", "out"), (("mlp", (3,)), ("experts", (3,)))),
        (["model.layers.*.self_attn", "model.layers.99.mlp"], ("qkv", "out"), ()),
        ([f"model.layers.{layer}.mlp.experts" for layer in range(12)], ("experts",), ()),
    ],
)
def test_parts_that_some_layers_keep_in_16_bits(
    names: list[str], every: tuple[str, ...], some: tuple[tuple[str, tuple[int, ...]], ...]
) -> None:
    fields = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": names}
    read = read_quantization({"quantization_config": fields}, "config.json", layers=12)
    assert read.unquantized == every
    assert read.part_formats == tuple((part, "bf16", numbers) for part, numbers in some)


def test_layers_in_several_precisions_are_predicted_as_they_are(tmp_path: Path) -> None:
    """Regression: Llama-3.1-405B-FP8 was refused: attention of all layers and two MLPs are in 16 bits.

    Its way out, --dtype, changed the precision of what is in 16 bits.
    """
    layers, ends = 8, (0, 7)
    names = [f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(layers) for part in "qkvo"]
    names += [f"model.layers.{layer}.mlp.{part}_proj" for layer in ends for part in ("gate", "up", "down")]
    shape = {**catalog.model_config("405b"), "num_hidden_layers": layers}
    fields = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": names}
    (tmp_path / "config.json").write_text(json.dumps({**shape, "quantization_config": fields}), "utf-8")
    scenario = Scenario(model=str(tmp_path), tp=8, stack="vllm")
    hidden, width, vocab = 16384, 53248, 128256
    attention, mlp = hidden * (2 * hidden + 2 * 8 * 128), 3 * hidden * width
    linear_bytes = 2 * (layers * attention + len(ends) * mlp) + (layers - len(ends)) * mlp + 2 * 2 * vocab * hidden
    assert weight_bytes(scenario) == pytest.approx(linear_bytes / 8, rel=1e-3)
    ops = build(scenario, "decode", 1025).ops()
    formats = {op.name: op.shape.format for op in ops if isinstance(op.shape, GemmShape)}
    assert {formats[f"layer{layer}.{part}"] for layer in range(layers) for part in ("attn.qkv", "attn.o")} == {"bf16"}
    assert [formats[f"layer{layer}.mlp.up"] for layer in range(layers)] == ["bf16", *["fp8"] * 6, "bf16"]
    # between all in 16 bits and all in 8
    times = [
        predict_one(Scenario(model=str(tmp_path), tp=8, stack="vllm", **given)).request_s
        for given in ({"dtype": "fp8"}, {}, {"dtype": "bf16"})
    ]
    assert times == sorted(times)


TWO_LAYERS = tuple(range(2))


@pytest.mark.parametrize(
    ("config", "dtype", "unquantized", "formats"),
    [
        # nvidia/MiniMax-M3-NVFP4: one expert's layers, its encoder and the router are named, too
        (
            {
                "quant_method": "modelopt",
                "exclude_modules": ["vision_tower", "patch_merge_mlp", "language_model.model.layers.1.mlp.gate"],
                **mixed(
                    {f"{at}.self_attn.{name}_proj": "MXFP8" for at in range(2) for name in "qkvo"}
                    | {f"{at}.mlp.experts.{n}.w1": "NVFP4" for at in range(2) for n in range(3)}
                    | {f"{at}.mlp.shared_experts.{name}_proj": "MXFP8" for at in range(2) for name in ("up", "down")}
                ),
            },
            "nvfp4",
            (),
            {"qkv": "fp8-block", "out": "fp8-block", "mlp": "fp8-block"},
        ),
        # nvidia/Qwen3.6-27B-NVFP4, dense
        (
            {
                "quant_method": "modelopt",
                "ignore": ["mtp.layers.0*"],
                **mixed(
                    {"0.linear_attn.in_proj_qkv": "FP8", "0.linear_attn.out_proj": "FP8"}
                    | {f"1.self_attn.{name}_proj": "FP8" for name in "qkvo"}
                    | {f"{at}.mlp.{name}_proj": "W4A16_NVFP4" for at in range(2) for name in ("gate", "up", "down")}
                ),
            },
            "w4a16",
            ("experts",),
            {"qkv": "fp8", "out": "fp8"},
        ),
        # nvidia/DeepSeek-V4-Flash-NVFP4: what it leaves out is in the format of the checkpoint before
        (
            {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "ignore": ["*.attn.*", "*.ffn.shared_experts.*"],
                **mixed({f"{at}.ffn.experts": "NVFP4" for at in range(2)}),
            },
            "nvfp4",
            (),
            {"qkv": "fp8-block", "out": "fp8-block", "mlp": "fp8-block"},
        ),
        # RedHatAI's: two groups, and one that leaves attention in 16 bits
        (
            compressed(
                FP8,
                FP8,
                config_groups={
                    "group_0": {"weights": FP8, "input_activations": FP8, "targets": ["re:.*self_attn.*"]},
                    "group_1": {"weights": FP4, "input_activations": FP4, "targets": ["Linear"]},
                },
            ),
            "nvfp4",
            (),
            {"qkv": "fp8", "out": "fp8"},
        ),
        (
            compressed(
                FP8,
                FP8,
                config_groups={"group_0": {"weights": FP8, "input_activations": FP8, "targets": ["re:.*mlp.*"]}},
            ),
            "fp8",
            ("qkv", "out"),
            {},
        ),
    ],
)
def test_parts_in_formats_of_their_own(
    config: dict[str, Any], dtype: str, unquantized: tuple[str, ...], formats: dict[str, str]
) -> None:
    read = read_quantization({"quantization_config": config}, "config.json", layers=2)
    assert (read.dtype, read.unquantized) == (dtype, unquantized)
    assert read.part_formats == tuple((part, own, TWO_LAYERS) for part, own in formats.items())


def test_experts_in_fp4_next_to_fp8() -> None:
    """DeepSeek-V4 says it outside of the field; its weights were taken for twice as large."""
    model = catalog.model("deepseek-v4-flash")
    assert model.weights_dtype == "mxfp4"
    # 284B parameters, nearly all of them experts', in 160 GB
    assert weight_bytes(Scenario(model=model, cluster="b200-sxm", tp=1)) == pytest.approx(160e9, rel=0.05)
    formats = {
        op.name.partition(".")[2]: op.shape.format
        for op in build(Scenario(model=model, cluster="b200-sxm", tp=8), "decode", 1025).ops()
        if op.layer == 9 and hasattr(op.shape, "format")
    }
    assert formats["mlp.experts"] == "mxfp4"
    assert {formats["mlp.shared.up"], formats["mlp.shared.down"]} == {"fp8-block"}


def test_experts_next_to_the_mlp_are_quantised_where_it_is_not() -> None:
    """Regression: nvidia/Gemma-4-26B-A4B-NVFP4 was read as 50 GB in 16 bits; its experts are in NVFP4."""
    kept = [f"model.language_model.layers.{n}.{part}*" for n in (0, 1) for part in ("mlp", "router", "self_attn")]
    fields = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *kept]}
    read = read_quantization({"quantization_config": fields}, "config.json", layers=2)
    assert (read.dtype, read.unquantized, read.part_formats) == ("nvfp4", ("qkv", "out", "mlp"), ())


def test_layers_that_predict_further_tokens_are_no_part_of_the_decoder() -> None:
    """Regression: "mtp.layers.0*" of nvidia/Qwen3.5-397B-A17B-NVFP4 left layer 0's experts in 16 bits."""
    fields = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp.layers.0*", "model.visual.mlp"]}
    assert read_quantization({"quantization_config": fields}, "config.json", layers=2) == ("nvfp4", None, (), ())


def test_settings_of_modelopt_in_a_file_of_their_own() -> None:
    """DeepSeek-V3.1-NVFP4: what projects queries, keys and values stays in 16 bits, a layer of drafts counts not."""
    model = catalog.model(str(DATA / "configs" / "DeepSeek-V3.1-NVFP4"))
    assert (model.weights_dtype, model.unquantized, model.kv_cache_dtype) == ("nvfp4", ("qkv",), "fp8")
    assert model.parameters == catalog.model("deepseek-v3").parameters


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(PUBLISHED)), st.data())
def test_damaged_fields_are_read_or_refused(name: str, data: st.DataObject) -> None:
    fields = dict(PUBLISHED[name][0])
    fields[data.draw(st.sampled_from([*fields, "kv_cache_scheme", "dynamic"]))] = data.draw(JSON)
    with contextlib.suppress(SpecError):
        read_quantization({"quantization_config": fields}, "config.json", layers=2)


def quantised(tmp_path: Path, name: str) -> str:
    config = {**catalog.model_config("8b"), "quantization_config": PUBLISHED[name][0]}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({key: value for key, value in config.items() if key not in ("_sources", "_ids")}))
    return str(file)


def test_a_checkpoint_decides_unless_precision_is_given(tmp_path: Path) -> None:
    config = quantised(tmp_path, "NVIDIA, NVFP4")
    own = Scenario(model=config, cluster="b200-sxm", stack="vllm")
    assert (own.workload.dtype, own.workload.kv_dtype) == ("nvfp4", "fp8")
    # what is given holds; the checkpoint's cache belongs to its own precision
    assert Scenario(model=config, dtype="fp8").workload.kv_dtype == "bf16"
    assert Scenario(model=config, kv_dtype="bf16").workload.dtype == "nvfp4"
    by_hand = Scenario(model=config, overrides={"workload.dtype": "bf16", "workload.kv_dtype": "fp8"})
    assert (by_hand.workload.dtype, by_hand.workload.kv_dtype) == ("bf16", "fp8")
    assert predict_one(own).tpot_s < predict_one(Scenario(model="8b", cluster="b200-sxm")).tpot_s  # type: ignore[operator]


def test_an_engine_has_a_habit_for_the_cache() -> None:
    """TensorRT-LLM's fp8 checkpoints ask for an fp8 cache."""
    for dtype, kept in (("fp8", "fp8"), ("nvfp4", "fp8"), ("bf16", "bf16"), ("w4a16", "bf16")):
        assert Scenario(model="8b", stack="trtllm", dtype=dtype).workload.kv_dtype == kept
    assert Scenario(model="8b", stack="vllm", dtype="fp8").workload.kv_dtype == "bf16"
    off = Scenario(model="8b", stack="trtllm", dtype="fp8", overrides={"stack.fp8_kv_cache": "false"})
    assert off.workload.kv_dtype == "bf16"


def test_the_decoder_of_a_multimodal_model_is_read() -> None:
    config = catalog.model_config("8b")
    fields = {"model_type": "llava", "text_config": config, "quantization_config": PUBLISHED["AWQ"][0]}
    assert ModelSpec.from_hf(fields, name="llava", source="config.json").weights_dtype == "w4a16"
