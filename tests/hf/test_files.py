"""Files of published models: what is read of them, and what their predictions leave out.

Where `tests/data/configs` comes from is in `tests/data/README.md`.
"""

import dataclasses
import json
from pathlib import Path

import pytest

from ladder_sim import Scenario, predict
from ladder_sim.errors import SpecError, UnknownNameError, UsageError
from ladder_sim.hf.types import EXPERTS, SIZES, TYPES
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario_warnings import scenario_warnings
from ladder_sim_runtime.config import ModelConfig
from tests.conftest import DATA
from tests.support.commands import run
from tests.support.configs import LLAMA_8B
from tests.support.predict_one import predict_one

CONFIGS = DATA / "configs"

# published counts of the checkpoints
PARAMETERS = {
    "Llama-3.3-70B-Instruct": 70_553_706_496,
    "Mistral-Small-24B-Instruct-2501": 23_572_403_200,
    "Mistral-Small-3.1-24B-Instruct-2503": 23_572_403_200,
    "Qwen3-8B": 8_190_735_360,
    # with one norm a layer: the model as it is has one for both blocks
    "c4ai-command-r-v01": 34_980_831_232 + 40 * 8192,
    "phi-4": 14_659_507_200,
}
# models of experts: the catalog has them as well
CATALOG = {
    "Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "DeepSeek-V2-Lite": "deepseek-v2-lite",
    "DeepSeek-V2": "deepseek-v2",
    "DeepSeek-V3": "deepseek-v3",
    "gpt-oss-20b": "gpt-oss-20b",
    "GLM-4.5-Air": "glm-4.5-air",
    "GLM-4.5": "glm-4.5",
    "Kimi-K2-Instruct": "kimi-k2",
    "MiniMax-M2.5": "minimax-m2.5",
    "Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "gemma-3-1b-it": "gemma-3-1b",
    "gemma-3-4b-it": "gemma-3-4b",
    "gemma-3-12b-it": "gemma-3-12b",
    "gemma-3-27b-it": "gemma-3-27b",
}
# millions of parameters without the embedding: Gemma 3 technical report (arXiv 2503.19786), table 1
WITHOUT_EMBEDDING = {"gemma-3-4b-it": 3_209, "gemma-3-12b-it": 10_759, "gemma-3-27b-it": 25_600}

# facts of blocks that are not Llama's
NOT_OF_LLAMA = {"use_qk_norm", "joint_qk_norm", "norms_behind", "post_norms", "parallel_blocks"}


def read(name: str) -> ModelSpec:
    return catalog.model(str(CONFIGS / f"{name}.json"))


def test_every_file_is_tested() -> None:
    files = {file.stem for file in CONFIGS.glob("*.json")}
    assert files == PARAMETERS.keys() | WITHOUT_EMBEDDING.keys() | CATALOG.keys()


@pytest.mark.parametrize("name", CATALOG)
def test_a_file_is_the_model_of_the_catalog(name: str) -> None:
    file, ours = read(name), catalog.model(CATALOG[name])
    assert dataclasses.replace(file, name=ours.name, source=ours.source, multimodal=False) == ours


@pytest.mark.parametrize("path", sorted(CONFIGS.iterdir()), ids=lambda path: path.stem)
def test_a_file_predicts(path: Path) -> None:
    plan = ("--cluster", "b200-sxm", "--tp", "2", "--pp", "4")
    for stack in ("vllm", "gpt-fast"):
        code, out, err = run("predict", "--model", str(path), "--stack", stack, *plan, "--json")
        assert code == 0, err
        variants = json.loads(out)["variants"]
        assert variants["standard"]["request_s"] > variants["upper-bound"]["request_s"] > 0


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_parameters(name: str) -> None:
    assert read(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", WITHOUT_EMBEDDING)
def test_gemma_3(name: str) -> None:
    """Heads, vocabulary and context are those of Gemma3TextConfig, which the files leave out."""
    model = read(name)
    assert round((model.parameters - model.vocab * model.hidden) / 1e6) == WITHOUT_EMBEDDING[name]
    assert (model.vocab, model.max_positions, model.sliding_window) == (262_208, 131_072, 1024)
    assert model.tied_embeddings
    assert model.qk_norm == "heads"
    assert model.block_norms == "both"
    assert model.multimodal
    text_only = (f"'{name}': only the text decoder is predicted, not its encoders",)
    assert scenario_warnings(Scenario(model=model, tp=1, stack="vllm")) == text_only


def test_attention_of_each() -> None:
    """Query heads, key/value heads, width of a head: given, left out, or a share of the width."""
    heads = {name: (read(name).heads, read(name).kv_heads, read(name).head_dim) for name in sorted(PARAMETERS)}
    assert heads == {
        "Llama-3.3-70B-Instruct": (64, 8, 128),
        "Mistral-Small-24B-Instruct-2501": (32, 8, 128),
        "Mistral-Small-3.1-24B-Instruct-2503": (32, 8, 128),
        "Qwen3-8B": (32, 8, 128),
        "c4ai-command-r-v01": (64, 64, 128),
        "phi-4": (40, 10, 128),
    }
    assert (read("gemma-3-4b-it").heads, read("gemma-3-4b-it").kv_heads, read("gemma-3-4b-it").head_dim) == (8, 4, 256)


def test_command_r_says_which_variant_it_is() -> None:
    predictions = predict(Scenario(model=str(CONFIGS / "c4ai-command-r-v01.json"), tp=2), ["standard", "parallel"])
    (warning,) = predictions.to_dict()["warnings"]
    assert "variant parallel is the model as it is" in warning
    assert read("c4ai-command-r-v01").tied_embeddings


def test_norms_behind_the_blocks_are_kernels() -> None:
    """Two more a layer, or one where both blocks share an all-reduce."""
    model = read("gemma-3-27b-it")
    before, *others = (
        Scenario(model=dataclasses.replace(model, block_norms=block_norms), tp=4, stack="vllm")
        for block_norms in ("before", "behind", "both")
    )
    for variant in ("standard", "parallel", "ladder", "hybrid-ladder:10", "upper-bound"):
        shorter_s = predict_one(before, variant).request_s
        for scenario in others:
            prediction = predict_one(scenario, variant)
            assert prediction.request.decode is not None
            norms = [each for each in prediction.request.decode.ops if ".post_norm" in each.op.name]
            assert sum(each.repeats for each in norms) == model.layers * (1 if variant == "parallel" else 2)
            # adds are not fused into norms behind the blocks
            assert prediction.request_s > shorter_s
            shorter_s = prediction.request_s
            assert shorter_s == pytest.approx(predict_one(scenario, variant, engine="des").request_s, rel=1e-9)


def test_a_decoder_may_leave_out_what_its_class_says() -> None:
    """Regression: a multimodal file was refused, with the advice to take its text_config out."""
    for kind, sizes in ((kind, row.sizes) for kind, row in TYPES.items() if row.sizes):
        config = {"model_type": "any", "text_config": {"model_type": kind}, "vision_config": {"depth": 1}}
        model = ModelSpec.from_hf(config, name="m", source="config.json")
        assert tuple(getattr(model, field) for field in SIZES) == sizes
    without_type = {"model_type": "mistral3", "text_config": {"hidden_size": 2560}, "vision_config": {"depth": 1}}
    model = ModelSpec.from_hf(without_type, name="m", source="config.json")
    assert (model.hidden, model.kv_heads) == (2560, 8)


def test_a_decoder_in_the_file_itself_is_read() -> None:
    """Qwen2.5-VL's first files hold the decoder's fields next to `vision_config`."""
    flat = {**LLAMA_8B, "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}, "audio_config": {"depth": 1}}
    model = ModelSpec.from_hf(flat, name="m", source="config.json")
    assert model.qkv_bias
    assert not model.out_bias
    assert model.multimodal


@pytest.mark.parametrize(("whole", "decoder", "tied"), [(True, None, True), (True, False, False), (None, None, False)])
def test_the_whole_model_may_say_that_the_head_is_tied(whole: bool | None, decoder: bool | None, tied: bool) -> None:
    text = {**LLAMA_8B, "tie_word_embeddings": decoder}
    if decoder is None:
        del text["tie_word_embeddings"]
    config = {"model_type": "any", "tie_word_embeddings": whole, "text_config": text}
    assert ModelSpec.from_hf(config, name="m", source="config.json").tied_embeddings is tied


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gemma3", "text_config": {"hidden_size": -1}}, "config.json: text_config: hidden_size is -1: "),
        ({"model_type": "gemma3", "text_config": [1]}, "config.json: text_config is [1]: must be an object"),
        (
            {"model_type": "x", "text_config": {"model_type": "granite"}},
            "config.json: text_config: num_hidden_layers is",
        ),
        (
            {"model_type": "gemma3", "text_config": {"vocab_size": 256}, "quantization_config": {"bits": 4}},
            "config.json: quantization_config: quant_method is",
        ),
    ],
)
def test_errors_name_the_field(config: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_hf(config, name="m", source="config.json")
    assert caught.value.message.startswith(says)
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["bert", "mamba2", "novel"])
def test_a_type_that_is_not_known_is_refused(kind: str) -> None:
    """Regression: with Llama's fields and RMSNorm it was predicted as a Llama."""
    for config in ({**LLAMA_8B, "model_type": kind}, {"model_type": "any", "text_config": {"model_type": kind}}):
        with pytest.raises(
            SpecError, match=f"model_type is '{kind}': must be a type that is known to have a decoder's"
        ):
            ModelSpec.from_hf(config, name="m", source="config.json")


def test_norms_over_all_heads_are_kernels_with_weights() -> None:
    llama, olmo = (
        ModelSpec.from_hf({**LLAMA_8B, "model_type": kind}, name="m", source="config.json")
        for kind in ("llama", "olmo2")
    )
    assert olmo.parameters - llama.parameters == 32 * (32 + 8) * 128
    assert predict_one(Scenario(model=olmo)).request_s > predict_one(Scenario(model=llama)).request_s


@pytest.mark.parametrize(
    "kind", [kind for kind, row in TYPES.items() if {*row.fields} & NOT_OF_LLAMA and kind not in EXPERTS]
)
def test_what_is_predicted_is_not_run_with_other_blocks(kind: str) -> None:
    """The runtime must have the blocks of a type, or refuse it."""
    if not TYPES[kind].not_run:
        assert not {*TYPES[kind].fields} & {"post_norms", "parallel_blocks"}
        return
    with pytest.raises(UsageError, match=f"model_type '{kind}' has .*, which are not implemented"):
        ModelConfig.from_hf({**LLAMA_8B, "model_type": kind})


def test_a_window_that_a_file_leaves_out() -> None:
    """It is the class's own; null says that there is none."""
    given = {**LLAMA_8B, "model_type": "mistral"}
    windows = [
        ModelSpec.from_hf({**given, **window}, name="m", source="config.json").sliding_window
        for window in ({}, {"sliding_window": None}, {"sliding_window": 2048})
    ]
    assert windows == [4096, 0, 2048]


def test_hugging_face_ids_are_names_of_the_catalog() -> None:
    ids = {hub_id: name for name in catalog.model_names() for hub_id in catalog.model_config(name).get("_ids", ())}
    assert ids["meta-llama/Llama-3.3-70B-Instruct"] == "llama-3.1-70b"
    for hub_id, name in ids.items():
        assert catalog.model(hub_id) == catalog.model(hub_id.upper()) == catalog.model(name)
    # each belongs to one model
    assert sum(len(catalog.model_config(name).get("_ids", ())) for name in catalog.model_names()) == len(ids)
    assert "meta-llama/Llama-3.3-70B-Instruct\n" in run("list", "meta-llama/Llama-3.3-70B-Instruct").out
    assert run("predict", "--model", "Qwen/Qwen3-32B").out == run("predict", "--model", "qwen3-32b").out


def test_the_file_of_an_id_is_the_model_of_the_catalog() -> None:
    ours, file = catalog.model("meta-llama/Llama-3.3-70B-Instruct"), read("Llama-3.3-70B-Instruct")
    assert dataclasses.replace(file, name=ours.name, source=ours.source) == ours


@pytest.mark.parametrize("hub_id", ["google/gemma-2-27b-it", "meta-llama/Llama-3.3-70B-Instuct"])
def test_another_id_is_refused_with_a_way_out(hub_id: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown model '{hub_id}'") as caught:
        catalog.model(hub_id)
    assert f"nothing is downloaded: save https://huggingface.co/{hub_id}/blob/main/config.json" in caught.value.hint
    assert ("did you mean 'meta-llama/Llama-3.3-70B-Instruct'?" in caught.value.hint) is ("Instuct" in hub_id)


def test_a_folder_named_like_an_id_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "google" / "gemma-2-27b-it"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_8B), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert catalog.model("google/gemma-2-27b-it").name == "gemma-2-27b-it"
