"""Any config.json becomes a model or an error that names file and field."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.hf.feed_forward import Moe
from ladder_sim.hf.fields import read_config
from ladder_sim.prediction import default_variants, own_variant
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import scenario_warnings
from tests.support.configs import LLAMA_8B
from tests.support.strategies import JSON

SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
OTHERS = ("model_type", "ladder_layers", "ladder_sim_wiring", "layer_types", "rms_norm_eps", "sliding_window")
FLAGS = (
    "tie_word_embeddings",
    "attention_bias",
    "attention_out_bias",
    "mlp_bias",
    "gated_mlp",
    "use_bias",
    "use_qkv_bias",
    "use_sliding_window",
)
REFUSED = ("num_experts", "text_config", "quantization_config")


def read(**changes: object) -> ModelSpec:
    return ModelSpec.from_hf({**LLAMA_8B, **changes}, name="m", source="some/config.json")


def refused(**changes: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read(**changes)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith("some/config.json: ")
    assert caught.value.hint
    return caught.value


def test_llama() -> None:
    model = read()
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim) == (32, 4096, 32, 8, 128)
    assert (model.intermediate, model.vocab, model.max_positions) == (14336, 128256, 131072)
    assert model.gated_mlp
    assert not any((model.tied_embeddings, model.qkv_bias, model.out_bias, model.mlp_bias))
    assert model.ladder_layers == ()
    assert model.parameters == 8_030_261_248
    assert model.source == "some/config.json"


def test_defaults() -> None:
    model = read(num_key_value_heads=None, head_dim=None)
    assert (model.kv_heads, model.head_dim) == (32, 128)
    assert read(head_dim=64).head_dim == 64
    # head_dim makes a hidden size that heads do not divide possible
    assert read(hidden_size=4100, head_dim=128).hidden == 4100


def test_biases() -> None:
    llama = read(attention_bias=True, mlp_bias=True)
    assert llama.qkv_bias
    assert llama.out_bias
    assert llama.mlp_bias
    qkv, out, mlp = (32 + 16) * 128, 4096, 2 * 14336 + 4096
    assert llama.parameters == 8_030_261_248 + 32 * (qkv + out + mlp)
    qwen2 = read(model_type="qwen2")
    assert qwen2.qkv_bias
    assert not qwen2.out_bias
    assert not read(model_type="qwen3").qkv_bias
    assert read(model_type="qwen3").qk_norm == "heads"
    assert read(model_type="qwen2").qk_norm == "none"


def test_published_parameter_counts() -> None:
    """Counts of the published checkpoints: Qwen2.5-7B, Mistral-7B-v0.1, Llama-3.2-1B (tied embeddings)."""
    qwen = read(
        model_type="qwen2",
        hidden_size=3584,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=18944,
        vocab_size=152064,
    )
    assert qwen.parameters == 7_615_616_512
    assert read(model_type="mistral", vocab_size=32000).parameters == 7_241_732_096
    llama = read(hidden_size=2048, num_hidden_layers=16, intermediate_size=8192, tie_word_embeddings=True)
    assert llama.parameters == 1_235_814_400


def test_ungated_and_other_types() -> None:
    assert read(gated_mlp=False).parameters == 8_030_261_248 - 32 * 4096 * 14336
    assert {kind: read(model_type=kind).block_norms for kind in ("llama", "olmo2", "olmo3", "exaone4", "gemma2")} == {
        "llama": "before",
        **dict.fromkeys(("olmo2", "olmo3", "exaone4"), "behind"),
        "gemma2": "both",
    }
    assert read(model_type=None).layers == 32
    assert read(model_type="gemma", tie_word_embeddings=None).tied_embeddings


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        (0, ()),
        (4, (28, 29, 30, 31)),
        (32, tuple(range(32))),
        ([], ()),
        ([5, 1], (1, 5)),
    ],
)
def test_ladder_layers(value: object, expected: tuple[int, ...]) -> None:
    assert read(model_type="llamaLadder", ladder_layers=value).ladder_layers == expected


@pytest.mark.parametrize("value", [33, -1, True, 1.5, "4", [32], [-1], [1, 1], [True], [[1]], {}, math.nan])
def test_bad_ladder_layers(value: object) -> None:
    assert "ladder_layers is" in refused(model_type="llamaLadder", ladder_layers=value).message


def test_ladder_layers_of_another_type_are_not_dropped_silently() -> None:
    error = refused(ladder_layers=4)
    assert "ladder_layers is 4" in error.message
    assert "--variant" in error.hint


def test_a_wiring_by_name() -> None:
    model = read(ladder_sim_wiring="delayed:2")
    assert default_variants(Scenario(model=model, tp=8)) == ("standard", "parallel", "delayed:2", "upper-bound")
    assert own_variant(model) == "delayed:2"
    assert "must be the name" in refused(ladder_sim_wiring=2).message
    assert "ladder_layers" in refused(ladder_sim_wiring="ladder", model_type="llamaLadder").message
    with pytest.raises(UnknownNameError, match="dleayed"):
        default_variants(Scenario(model=read(ladder_sim_wiring="dleayed:2"), tp=8))


@pytest.mark.parametrize("field", [f for f in SIZES if f not in ("num_key_value_heads", "head_dim")])
def test_missing_field(field: str) -> None:
    for gone in (refused(**{field: None}), refused_without(field)):
        assert f"{field} is missing" in gone.message
        assert field in gone.hint


def refused_without(field: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_hf({k: v for k, v in LLAMA_8B.items() if k != field}, name="m", source="some/config.json")
    return caught.value


@pytest.mark.parametrize("field", SIZES)
def test_impossible_size(field: str) -> None:
    for value in (0, -1, math.nan, math.inf, True, False, "4096", 32.0, [], [8], {}, 10**12, 10**5000):
        error = refused(**{field: value})
        assert f"{field} is " in error.message
        assert "must be a whole number from 1 to" in error.message
        assert field in error.hint
        assert len(str(error)) < 400


def test_absurd_sizes() -> None:
    assert "num_hidden_layers is 10001" in refused(num_hidden_layers=10_001).message
    assert "hidden_size is 1000001" in refused(hidden_size=1_000_001).message


@pytest.mark.parametrize("field", FLAGS)
def test_impossible_flag(field: str) -> None:
    for value in (0, 1, "true", math.nan, []):
        assert f"{field} is " in refused(**{field: value}).message


def test_heads_that_do_not_divide() -> None:
    assert "num_key_value_heads is 5: must divide num_attention_heads, 32" in refused(num_key_value_heads=5).message
    error = refused(hidden_size=4100)
    assert "hidden_size is 4100: must be a multiple of num_attention_heads, 32" in error.message
    assert "head_dim" in error.hint


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("num_experts", 8, "mixture-of-experts"),
        ("num_local_experts", 8, "mixture-of-experts"),
        ("n_routed_experts", 256, "mixture-of-experts"),
        ("kv_lora_rank", 512, "latent attention"),
        ("is_encoder_decoder", True, "encoder-decoder"),
        ("state_size", 16, "state-space"),
        ("mamba_d_state", 16, "state-space"),
    ],
)
def test_other_architectures(field: str, value: object, kind: str) -> None:
    error = refused(**{field: value})
    assert f"{field} is " in error.message
    assert kind in error.message


def test_dense_configs_that_say_none() -> None:
    dense = read(num_local_experts=0, kv_lora_rank=None, is_encoder_decoder=False, layer_types=["full_attention"] * 32)
    assert dense.layers == 32


def test_layers_without_attention() -> None:
    assert "layer_types" in refused(layer_types=["full_attention", "linear_attention"]).message
    assert "layer_types" in refused(layer_types=3).message


def test_foreign_model_type() -> None:
    error = refused(model_type="bert")
    assert "model_type is 'bert'" in error.message
    assert '"model_type": "llama"' in error.hint
    assert "model_type is 7" in refused(model_type=7).message


COMMON: dict[str, object] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}

# configs of published models (all fields that matter here), and what they must become
OTHER_DENSE: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "starcoder2-7b": (
        {
            "model_type": "starcoder2",
            "hidden_size": 4608,
            "num_hidden_layers": 32,
            "num_attention_heads": 36,
            "num_key_value_heads": 4,
            "intermediate_size": 18432,
            "vocab_size": 49152,
            "max_position_embeddings": 16384,
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "sliding_window": 4096,
        },
        # without the biases of LayerNorms: (2 * 32 + 1) * 4608
        {"parameters": 7_173_923_840 - 65 * 4608, "gated_mlp": False, "sliding_window": 4096},
    ),
    "gemma-7b": (
        {
            "model_type": "gemma",
            "hidden_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "intermediate_size": 24576,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "hidden_act": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
        },
        {"parameters": 8_537_680_896, "gated_mlp": True, "tied_embeddings": True},
    ),
    "granite-3.1-8b": (
        {
            "model_type": "granite",
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 12800,
            "vocab_size": 49155,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
        {"parameters": 8_170_848_256, "qkv_bias": False},
    ),
    "phi-3-mini": (
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 8192,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "sliding_window": 2047,
        },
        {"parameters": 3_821_079_552, "sliding_window": 2047},
    ),
    "stablelm-2-12b's family": (
        {
            **LLAMA_8B,
            "model_type": "stablelm",
            "rms_norm_eps": None,
            "layer_norm_eps": 1e-5,
            "use_qkv_bias": True,
            "use_parallel_residual": False,
        },
        {"qkv_bias": True, "out_bias": False, "gated_mlp": True},
    ),
    "nemotron": (
        {**LLAMA_8B, "model_type": "nemotron", "rms_norm_eps": None, "norm_eps": 1e-5, "hidden_act": "relu2"},
        {"gated_mlp": False, "qkv_bias": False},
    ),
    "internlm2": ({**LLAMA_8B, "model_type": "internlm2", "bias": False}, {"parameters": 8_030_261_248}),
}


@pytest.mark.parametrize("name", OTHER_DENSE)
def test_other_dense_models(name: str) -> None:
    config, expected = OTHER_DENSE[name]
    model = ModelSpec.from_hf(config, name="m", source="config.json")
    assert {field: getattr(model, field) for field in expected} == expected


MIXTRAL = {**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
LLAMA_4 = {**MIXTRAL, "model_type": "llama4_text", "num_experts_per_tok": 1, "intermediate_size_mlp": 16384}
DEEPSEEK = {
    **LLAMA_8B,
    "model_type": "deepseek_v3",
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (MIXTRAL, {"num_local_experts": None}, "num_local_experts is missing: a config.json of type 'mixtral' must"),
        (MIXTRAL, {"num_experts": 16}, "num_experts is 16: must be num_local_experts, 8, which means the same"),
        (MIXTRAL, {"experts_per_token": 4}, "experts_per_token is 4: must be num_experts_per_tok, 2"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "num_experts_per_tok is 9: must be at most num_local_experts, 8"),
        (DEEPSEEK, {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        (DEEPSEEK, {"n_group": 7}, "n_group is 7: must divide n_routed_experts, 256"),
        (DEEPSEEK, {"first_k_dense_replace": 33}, "first_k_dense_replace is 33: must be a whole number from 0 to 32"),
        (DEEPSEEK, {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        (DEEPSEEK, {"attention_bias": True}, "attention_bias is True: latent attention with biases"),
        (DEEPSEEK, {"mlp_only_layers": [40]}, "mlp_only_layers: a layer is 40: must be a whole number from 0 to 31"),
        (LLAMA_8B, {"n_routed_experts": 8}, "n_routed_experts is 8: model_type 'llama' is not a mixture-of-experts"),
        (
            LLAMA_8B,
            {"num_experts_per_tok": 2},
            "num_experts_per_tok is 2: model_type 'llama' is not a mixture-of-experts",
        ),
        (LLAMA_8B, {"moe_intermediate_size": 64}, "moe_intermediate_size is 64: model_type 'llama' is not a mixture"),
        (LLAMA_4, {"no_rope_layers": [1, 0]}, "no_rope_layers is [1, 0]: must be 0 or 1 for each of 32 layers"),
        (LLAMA_4, {"no_rope_layers": ["1"] * 32}, "no_rope_layers is"),
        (LLAMA_4, {"no_rope_layers": 4}, "no_rope_layers is 4: must be 0 or 1"),
        (
            LLAMA_8B,
            {"layer_types": ["full_attention"]},
            "layer_types is ['full_attention']: must have an entry",
        ),
    ],
)
def test_contradictory_layers(config: dict[str, object], change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_hf({**config, **change}, name="m", source="some/config.json")
    assert caught.value.message.startswith(f"some/config.json: {message}")
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_layers_with_experts() -> None:
    """Every name that families give to them."""
    experts = {
        "first_k_dense_replace": (3, (0, 1, 2)),
        "moe_layer_freq": (2, tuple(range(1, 32, 2))),
        "decoder_sparse_step": (2, tuple(range(0, 32, 2))),
        "interleave_moe_layer_step": (2, tuple(range(0, 32, 2))),
        "mlp_only_layers": ([4, 7], (4, 7)),
        "moe_layers": ([1, 2], (0, *range(3, 32))),
    }
    for key, (value, dense) in experts.items():
        model = ModelSpec.from_hf({**MIXTRAL, key: value}, name="m", source="config.json")
        assert model.dense_layers == dense
        assert [isinstance(kind.feed_forward, Moe) for kind in model.kinds] == [i not in dense for i in range(32)]


def test_layers_without_rotation() -> None:
    """Llama 4 says for each layer whether it is rotated, and that is whether it attends to a chunk."""
    every_fourth = ModelSpec.from_hf(LLAMA_4, name="m", source="config.json")
    assert every_fourth.nope_layers == tuple(range(3, 32, 4))
    listed = ModelSpec.from_hf({**LLAMA_4, "no_rope_layers": [0, 1] * 16}, name="m", source="config.json")
    assert listed.nope_layers == tuple(range(0, 32, 2))
    assert listed.window_layers == tuple(range(1, 32, 2))
    chunks = {"no_rope_layers": [1] * 32, "layer_types": ["full_attention"] * 32}
    assert ModelSpec.from_hf({**LLAMA_4, **chunks}, name="m", source="config.json").sliding_window == 0
    assert ModelSpec.from_hf(MIXTRAL, name="m", source="config.json").nope_layers == ()


# configs of published models of other kinds, with the fields that give them away; the field to name; the kind
OTHER_KINDS: dict[str, tuple[dict[str, object], str, str]] = {
    "Qwen3-Next": (
        {**LLAMA_8B, "model_type": "qwen3_next", "num_experts": 512, "linear_num_key_heads": 16},
        "linear_num_key_heads is 16",
        "linear attention",
    ),
    "Kimi Linear": (
        {**LLAMA_8B, "model_type": "kimi_linear", "linear_attn_config": {"num_heads": 32}, "kv_lora_rank": 512},
        "linear_attn_config is",
        "linear attention",
    ),
    "MiniMax-M1": (
        {**LLAMA_8B, "model_type": "minimax_m1", "attn_type_list": [0, 0, 1], "num_local_experts": 32},
        "attn_type_list is [0, 0, 1]",
        "linear attention",
    ),
    "DeepSeek-V3.2": (
        {**LLAMA_8B, "model_type": "deepseek_v32", "n_routed_experts": 256, "kv_lora_rank": 512, "index_topk": 2048},
        "index_topk is 2048",
        "sparse attention",
    ),
    "Nemotron-H": (
        {**LLAMA_8B, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"},
        "hybrid_override_pattern is",
        "state-space",
    ),
    "Qwen2-MoE": (
        {**LLAMA_8B, "model_type": "qwen2_moe", "num_experts": 60, "num_experts_per_tok": 4},
        "num_experts is 60",
        "mixture-of-experts",
    ),
    "MiniCPM3 (latent attention)": (
        {**LLAMA_8B, "model_type": "minicpm3", "kv_lora_rank": 256, "q_lora_rank": 768},
        "kv_lora_rank is 256",
        "latent attention",
    ),
    "T5": (
        {
            "model_type": "t5",
            "d_model": 1024,
            "d_ff": 4096,
            "num_layers": 24,
            "num_decoder_layers": 24,
            "num_heads": 16,
            "is_encoder_decoder": True,
            "vocab_size": 32128,
        },
        "is_encoder_decoder is True",
        "encoder-decoder",
    ),
    "Mamba": (
        {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "vocab_size": 50280},
        "state_size is 16",
        "state-space",
    ),
    "RecurrentGemma": (
        {**LLAMA_8B, "model_type": "recurrent_gemma", "lru_width": 4096, "block_types": ["recurrent", "attention"]},
        "lru_width is 4096",
        "recurrent",
    ),
    "Llama-3.2-Vision": (
        {"model_type": "mllama", "text_config": {**LLAMA_8B, "cross_attention_layers": [3]}, "vision_config": {"a": 1}},
        "text_config: cross_attention_layers is",
        "attend to an encoder",
    ),
    "Gemma 3n": (
        {"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text", "hidden_size_per_layer_input": 256}},
        "text_config: hidden_size_per_layer_input is",
        "embeddings of each layer",
    ),
    "Nemotron-NAS": (
        {**LLAMA_8B, "model_type": "nemotron-nas", "block_configs": [{"ffn": 1}]},
        "block_configs is",
        "shapes",
    ),
    "Falcon": (
        {**COMMON, "model_type": "falcon", "parallel_attn": True, "multi_query": True},
        "parallel_attn is True",
        "side by side",
    ),
    "Phi-2": ({**LLAMA_8B, "model_type": "phi", "rms_norm_eps": None}, "model_type is 'phi'", "side by side"),
    "OPT": (
        {**COMMON, "model_type": "opt", "ffn_dim": 16384, "max_position_embeddings": 2048},
        "model_type is 'opt'",
        "must be a type that is known",
    ),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_other_kinds_are_refused_with_the_field_named(name: str) -> None:
    config, field, kind = OTHER_KINDS[name]
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_hf(config, name="m", source="some/config.json")
    assert caught.value.message.startswith(f"some/config.json: {field}")
    assert kind in caught.value.message
    assert caught.value.hint


def test_sliding_window() -> None:
    assert read(model_type="mistral", sliding_window=4096).sliding_window == 4096
    assert read(model_type="mistral", sliding_window=None).sliding_window == 0
    # Qwen's configs give a window that only use_sliding_window puts to use
    assert read(model_type="qwen2", sliding_window=131072).sliding_window == 0
    assert read(model_type="qwen2", sliding_window=4096, use_sliding_window=True).sliding_window == 4096
    mixed = ["sliding_attention", "full_attention"] * 16
    assert read(model_type="gemma2", sliding_window=4096, layer_types=mixed).sliding_window == 4096
    assert read(sliding_window=4096, layer_types=["full_attention"] * 32).sliding_window == 0
    for value in (-1, "4096", 1.5, True, []):
        assert "sliding_window is" in refused(model_type="qwen2", sliding_window=value).message


def test_a_static_cache_is_read_beyond_a_sliding_window() -> None:
    model = read(model_type="mistral", sliding_window=4096)
    long, short = (scenario_warnings(Scenario(model=model, prompt=prompt, gen=96)) for prompt in (4096, 4000))
    assert any("last 4096 tokens only" in text and "reads its whole cache" in text for text in long)
    assert not any("last 4096" in text for text in short)
    assert not scenario_warnings(Scenario(model=model, prompt=4096, stack="vllm"))


field_names = st.sampled_from([*SIZES, *OTHERS, *FLAGS, *REFUSED])


@given(st.dictionaries(field_names, JSON | st.integers(1, 64), max_size=6), st.booleans())
def test_any_config_is_read_or_refused(changes: dict[str, object], on_top_of_llama: bool) -> None:
    config = {**LLAMA_8B, **changes} if on_top_of_llama else changes
    try:
        model = ModelSpec.from_hf(config, name="m", source="config.json")
    except SpecError as error:
        assert error.message.startswith("config.json: ")  # noqa: PT017
        assert error.hint  # noqa: PT017
        str(error).encode()
        return
    assert model.parameters > 0
    assert hash(model) == hash(ModelSpec.from_hf(config, name="m", source="config.json"))


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_file_and_directory(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model-1.5"
    folder.mkdir()
    file = write(folder / "config.json", json.dumps(LLAMA_8B))
    for path in (file, str(folder), str(folder) + "/"):
        model = catalog.model(path)
        assert model.parameters == 8_030_261_248
        assert model.name == "My-Model-1.5"
    named = catalog.model(write(tmp_path / "tiny.json", "\ufeff" + json.dumps(LLAMA_8B)))
    assert named.name == "tiny"
    assert named.source == str(tmp_path / "tiny.json")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "the file is empty"),
        (json.dumps(LLAMA_8B)[:50].encode(), "truncated?"),
        (b"\x7fELF\x02\x01\xff\xfe\x00", "not UTF-8 text"),
        (b"\x00" * 100, "not valid JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'"llama"', "must be a JSON object"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_bad_file(tmp_path: Path, content: bytes, rule: str) -> None:
    path = write(tmp_path / "config.json", content)
    with pytest.raises(SpecError) as caught:
        catalog.model(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert rule in caught.value.message
    assert caught.value.hint


def test_nan_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", json.dumps({**LLAMA_8B, "vocab_size": math.nan}))
    with pytest.raises(SpecError, match="vocab_size is nan"):
        catalog.model(path)


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "config.json", Path("./models/Llama-3.1-8B.json")):
        with pytest.raises(SpecError, match="no such file") as caught:
            catalog.model(str(path))
        assert "nothing is downloaded" in caught.value.hint


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: no such file"):
        catalog.model(str(tmp_path))


def test_directory_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json" / "config.json").mkdir(parents=True)
    with pytest.raises(SpecError, match="is a folder: must be a file"):
        catalog.model(str(tmp_path))


def test_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with path.open("wb") as file:
        file.truncate(10_000_001)
    with pytest.raises(SpecError, match="must be at most 10000000 bytes") as caught:
        read_config(path)
    assert "not the weights" in caught.value.hint


def test_a_device_is_no_file() -> None:
    with pytest.raises(SpecError, match="is a device: must be a file"):
        read_config(Path("/dev/zero"))


@pytest.mark.parametrize("path", ["a\0b/config.json", "x" * 300 + "/" + "y" * 300 + ".json", "\udcff/\x1b[31m.json"])
def test_odd_paths(path: str) -> None:
    with pytest.raises(SpecError) as caught:
        catalog.model(path)
    str(caught.value).encode()
    assert "\x1b" not in str(caught.value)


@given(st.binary(max_size=200) | st.just(json.dumps(LLAMA_8B).encode()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "config.json", content)
    try:
        model = catalog.model(path)
    except SpecError as error:
        assert error.message.startswith(path)  # noqa: PT017
        return
    assert model.layers == 32


@given(st.integers(0, 2000), st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files(tmp_path: Path, position: int, byte: int) -> None:
    """One byte changed: another valid model, or an error that names the file."""
    content = bytearray(json.dumps(LLAMA_8B).encode())
    content[position % len(content)] = byte
    path = write(tmp_path / "config.json", bytes(content))
    try:
        catalog.model(path)
    except SpecError as error:
        assert error.message.startswith(path)  # noqa: PT017


def test_names_are_no_paths() -> None:
    with pytest.raises(UnknownNameError, match="unknown model '405bb'"):
        catalog.model("405bb")
