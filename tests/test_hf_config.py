"""Any config.json becomes a model or an error that names file and field."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.specs import catalog
from ladder_sim.specs.hf_config import read_config
from ladder_sim.specs.model import ModelSpec

LLAMA_8B: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
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
OTHERS = ("model_type", "ladder_layers", "layer_types", "rms_norm_eps")
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "gated_mlp")
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
    assert read(model_type="olmo2").layers == 32
    assert read(model_type=None).layers == 32
    assert read(model_type="gemma", tie_word_embeddings=None).tied_embeddings


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, tuple(range(32))),
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
@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        math.nan,
        math.inf,
        True,
        False,
        "4096",
        32.0,
        [],
        [8],
        {},
        10**12,
        pytest.param(10**5000, id="5001 digits"),
    ],
)
def test_impossible_size(field: str, value: object) -> None:
    error = refused(**{field: value})
    assert f"{field} is " in error.message
    assert "must be a whole number from 1 to" in error.message
    assert field in error.hint
    assert len(str(error)) < 400


def test_absurd_sizes() -> None:
    assert "num_hidden_layers is 10001" in refused(num_hidden_layers=10_001).message
    assert "hidden_size is 1000001" in refused(hidden_size=1_000_001).message


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", math.nan, []])
def test_impossible_flag(field: str, value: object) -> None:
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
        ("quantization_config", {"bits": 4}, "quantized"),
        ("text_config", {"hidden_size": 4096}, "multimodal"),
        ("vision_config", {"hidden_size": 4096}, "multimodal"),
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
    error = refused(model_type="bert", rms_norm_eps=None)
    assert "model_type is 'bert'" in error.message
    assert '"model_type": "llama"' in error.hint
    assert "model_type is 7" in refused(model_type=7).message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
field_names = st.sampled_from([*SIZES, *OTHERS, *FLAGS, *REFUSED])


@given(st.dictionaries(field_names, json_values | st.integers(1, 64), max_size=6), st.booleans())
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
    for path in (tmp_path / "no" / "config.json", Path("meta-llama/Llama-3.1-8B")):
        with pytest.raises(SpecError, match="no such file") as caught:
            catalog.model(str(path))
        assert "nothing is downloaded" in caught.value.hint


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: no such file"):
        catalog.model(str(tmp_path))


def test_directory_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json" / "config.json").mkdir(parents=True)
    with pytest.raises(SpecError, match="cannot be read"):
        catalog.model(str(tmp_path))


def test_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with path.open("wb") as file:
        file.truncate(10_000_001)
    with pytest.raises(SpecError, match="must be at most 10000000") as caught:
        read_config(path)
    assert "not the weights" in caught.value.hint


def test_endless_file_is_cut() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("needs /dev/zero")
    with pytest.raises(SpecError, match="over 10000000 bytes"):
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
