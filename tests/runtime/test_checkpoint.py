"""Checkpoints: what transformers saved computes the same here at every degree, and what is damaged is refused early."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ladder_sim.errors import UsageError
from ladder_sim.hf.fields import read_object
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.checkpoint.files import Checkpoint, convert, hybrid
from ladder_sim_runtime.checkpoint.tensors import tensor_shapes
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import ModelConfig
from tests.conftest import REPO
from tests.support.checkpoints import FAMILIES, save_checkpoint
from tests.support.loaded import CASES, GEN, PROMPTS, completed, expert_degrees, model_of, run_ranks
from tests.support.reference import reference_logits
from tests.support.strategies import damaged, damaged_text

pytestmark = pytest.mark.torch


class Saved(NamedTuple):
    """Checkpoints of every family, and what each degree's ranks made of them."""

    root: Path
    references: dict[str, Any]
    results: dict[int, list[dict[str, Any]]]

    def of_every_rank(self) -> list[dict[str, Any]]:
        return [result for ranks in self.results.values() for result in ranks]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    root = tmp_path_factory.mktemp("loaded") / "checkpoints"
    # every second one in shards
    references = {
        name: save_checkpoint(root / name, name, shard="200KB" if i % 2 else "5GB") for i, name in enumerate(FAMILIES)
    }
    return Saved(root, references, {size: run_ranks(size, root) for size in (1, 2)})


@pytest.mark.parametrize("family", FAMILIES)
def test_standard_is_what_transformers_computes(saved: Saved, family: str) -> None:
    reference = saved.references[family]
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        logits = reference(ids).logits
        greedy = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=GEN,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    expected = greedy[:, len(PROMPTS[0]) :].tolist()
    shape = ModelConfig.from_file(saved.root / family)
    for size, ranks in saved.results.items():
        for result in ranks:
            assert [*result["logits"][family]] == expert_degrees(shape, size)
            for ep, computed in result["logits"][family].items():
                torch.testing.assert_close(computed, logits, atol=1e-5, rtol=1e-5)
                assert result["greedy"][family][ep].tolist() == expected


@pytest.mark.parametrize("family", ["llama", "deepseek-v3"])
def test_a_batch_behind_padding_is_what_transformers_computes(saved: Saved, family: str) -> None:
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[9] * (width - len(prompt)) + prompt for prompt in PROMPTS])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    greedy = saved.references[family].generate(
        ids, attention_mask=seen, max_new_tokens=GEN, do_sample=False, eos_token_id=None, pad_token_id=9
    )
    tokens_BG, _ = saved.results[1][0]["padded"][family, "flash", "standard"]
    assert tokens_BG.tolist() == greedy[:, width:].tolist()


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_padding_changes_nothing(saved: Saved, case: tuple[str, str, str]) -> None:
    for result in saved.of_every_rank():
        tokens_BG, logits_BGV = result["padded"][case]
        for row, (alone_1G, logits_1GV) in enumerate(result["alone"][case]):
            assert tokens_BG[row].tolist() == alone_1G[0].tolist()
            torch.testing.assert_close(logits_BGV[row], logits_1GV[0], atol=1e-3, rtol=1e-4)


def test_a_hybrid_is_the_equations_over_the_same_weights(saved: Saved, tmp_path: Path) -> None:
    folder = saved.root / "llama"
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "llamaLadder", "ladder_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    model, weights = model_of(tmp_path, Communicator(), prefill_logits="all"), load_file(folder / "model.safetensors")
    assert model.config.variant == "hybrid-ladder:2"
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        logits = model(ids, lay_out(model.config.variant, 4, model.config.ladder_layers))
        (expected,) = reference_logits(model.config, weights, ids, "hybrid-ladder:2", 1)
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("ladder_layers", [0, 2, 4, [1, 2]])
def test_transformers_runs_a_hybrid_s_code(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ladder_layers: int | list[int]
) -> None:
    """Logits, greedy tokens with its cache, and a gradient for every weight."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "hybrid"
    convert(saved.root / "llama", folder, 2, hf_code=True)
    config = json.loads((folder / "config.json").read_text()) | {"ladder_layers": ladder_layers}
    (folder / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    shape, ids = ModelConfig.from_file(folder), torch.tensor([PROMPTS[0]])
    logits = model(ids).logits
    ours = model_of(folder, Communicator(), prefill_logits="all")
    wiring = lay_out(shape.variant, 4, shape.ladder_layers)
    with torch.inference_mode():
        torch.testing.assert_close(logits, ours(ids, wiring), atol=1e-5, rtol=1e-5)
    logits.logsumexp(-1).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    # the prompt has the token that pads
    mask = torch.ones_like(ids)
    tokens = model.generate(
        ids, attention_mask=mask, max_new_tokens=GEN, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert tokens[0, -GEN:].tolist() == completed(ours, wiring, PROMPTS[:1])[0][0].tolist()


def test_weights_of_another_wiring_are_not_converted(saved: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "parallel"
    shutil.copytree(saved.root / "llama", folder)
    config = read_object(folder / "config.json", what="a config.json") | {"ladder_sim_wiring": "parallel"}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(UsageError, match="were trained as 'parallel'"):
        convert(folder, tmp_path / "hybrid", 2)
    assert not (tmp_path / "hybrid").exists()
    # more layers of a ladder are ladder
    convert(saved.root / "llama", tmp_path / "two", 2)
    convert(tmp_path / "two", tmp_path / "three", 3)
    assert Checkpoint.open(tmp_path / "three").shape.variant == "hybrid-ladder:3"


def test_code_is_written_for_llamas_alone(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--hf-code: the model has norms of queries and keys"):
        convert(saved.root / "qwen3", tmp_path / "hybrid", 2, hf_code=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hybrid_is_another_wiring_of_the_same_model(saved: Saved, family: str) -> None:
    config = read_object(saved.root / family / "config.json", what="a config.json")
    trained = config | {"ladder_sim_wiring": "delayed:1"}
    assert ModelConfig.from_hf(hybrid(trained, 2)) == ModelConfig.from_hf(hybrid(config, 2))
    hybrid_shape = ModelConfig.from_hf(hybrid(config, 2))
    own = {"ladder_layers": hybrid_shape.ladder_layers, "wiring": hybrid_shape.wiring}
    assert hybrid_shape == replace(ModelConfig.from_hf(config), **own)
    assert hybrid_shape.variant == "hybrid-ladder:2"
    assert hybrid_shape.ladder_layers == ((2, 3) if family.startswith("llama") else ())


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_half_precision_is_widened_exactly(saved: Saved, tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    tensors = {key: value.to(dtype) for key, value in load_file(saved.root / "llama" / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((saved.root / "llama" / "config.json").read_bytes())
    assert Checkpoint.open(tmp_path).dtype == name
    model = model_of(tmp_path, Communicator())
    assert torch.equal(model.embedding_VD, tensors["model.embed_tokens.weight"].float())
    assert torch.equal(model.layers[3].mlp.down.weight_NF, tensors["model.layers.3.mlp.down_proj.weight"].float())


def test_layers_that_predict_further_tokens_are_left_out(saved: Saved, tmp_path: Path) -> None:
    """DeepSeek-V3's checkpoints have one after the model's own; a second one is not said to be there."""
    (tmp_path / "config.json").write_bytes((saved.root / "deepseek-v3" / "config.json").read_bytes())
    tensors = load_file(saved.root / "deepseek-v3" / "model.safetensors")
    for layer in (4, 5):
        tensors |= {f"model.layers.{layer}.eh_proj.weight": torch.zeros(2, 2)}
        save_file(tensors, tmp_path / "model.safetensors")
        if layer == 4:
            assert "model.layers.4.eh_proj.weight" not in Checkpoint.open(tmp_path).tensors
    with pytest.raises(UsageError, match=r"model\.layers\.5\.eh_proj\.weight \[2, 2\] is not part of the model"):
        Checkpoint.open(tmp_path)


@pytest.fixture
def broken(saved: Saved, tmp_path: Path) -> Path:
    """A copy to be damaged, in shards."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in (saved.root / "llama-tied-biased").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def _change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite the shard of the last layer."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    file = folder / index["model.layers.3.mlp.down_proj.weight"]
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def _change_json(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


INDEX = "model.safetensors.index.json"
DOWN = "model.layers.3.mlp.down_proj.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensor missing in its file": (lambda f: _change_tensors(f, lambda t: t.pop(DOWN)), rf"{DOWN} is not in model-"),
    "tensor missing in the index": (
        lambda f: _change_json(f, INDEX, lambda j: j["weight_map"].pop(DOWN)),
        rf"{DOWN} \[64, 96\] is missing",
    ),
    "tensor of another shape": (
        lambda f: _change_tensors(f, lambda t: t.update({DOWN: torch.zeros(64, 95)})),
        rf"{DOWN} is \[64, 95\], must be \[64, 96\]",
    ),
    "tensor of another type": (
        lambda f: _change_tensors(f, lambda t: t.update({DOWN: torch.zeros(64, 96, dtype=torch.int8)})),
        rf"{DOWN} is I8, must be F32, BF16, F16",
    ),
    "config without the biases": (
        lambda f: _change_json(f, "config.json", lambda j: j.update(mlp_bias=False)),
        r"mlp.*_proj.bias \[.*\] is not part of the model.* and 9 more",
    ),
    "config with more layers": (
        lambda f: _change_json(f, "config.json", lambda j: j.update(num_hidden_layers=5)),
        r"model.layers.4.input_layernorm.weight \[64\] is missing",
    ),
    "untied head that is not there": (
        lambda f: _change_json(f, "config.json", lambda j: j.update(tie_word_embeddings=False)),
        r"lm_head.weight \[320, 64\] is missing",
    ),
    "other architecture": (
        lambda f: _change_json(f, "config.json", lambda j: j.update(model_type="granite")),
        "model_type is 'granite': must be one of llama",
    ),
    "file that is not there": (lambda f: sorted(f.glob("*.safetensors"))[1].unlink(), "names 'model-00002-of"),
    "index out of the folder": (
        lambda f: _change_json(f, INDEX, lambda j: j["weight_map"].update({DOWN: "../model.safetensors"})),
        r"names '../model.safetensors', which is not in the folder",
    ),
    "index without a map": (lambda f: (f / INDEX).write_text("{}"), "weight_map must give"),
    "index that is no JSON": (lambda f: (f / INDEX).write_text("{"), "not valid JSON"),
    "nothing but a config": (lambda f: (f / INDEX).unlink(), "neither model.safetensors nor"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: no such file"),
    "truncated file": (lambda f: _cut(sorted(f.glob("*.safetensors"))[0], 0.7), "incomplete metadata"),
    "truncated header": (lambda f: _cut(sorted(f.glob("*.safetensors"))[0], 0.001), "header"),
    "empty file": (lambda f: _cut(sorted(f.glob("*.safetensors"))[0], 0), "header"),
    "header of nonsense": (
        lambda f: sorted(f.glob("*.safetensors"))[0].write_bytes(struct.pack("<Q", 4) + b"oops"),
        "header",
    ),
}


def _cut(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_header_or_an_index_is_seen(broken: Path, data: st.DataObject) -> None:
    """Bytes changed in the header of a file, or entries of the index: it is refused, or has every tensor."""
    whole = {file: file.read_bytes() for file in (*broken.glob("*.safetensors"), broken / INDEX)}
    file = data.draw(st.sampled_from(sorted(whole)))
    content = whole[file]
    if file.name == INDEX:
        content = data.draw(damaged(json.loads(content)))
    else:
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header = data.draw(damaged_text(content[8:end].decode()))
        length = data.draw(st.sampled_from([len(header), end - 8, 0, 2**63, 10**9]))
        content = struct.pack("<Q", length) + header + content[end:]
    file.write_bytes(content)
    try:
        checkpoint = Checkpoint.open(broken)
    except UsageError as error:
        assert str(broken) in str(error)  # noqa: PT017
    else:
        assert all(checkpoint.tensors[name].shape == shape for name, shape in tensor_shapes(checkpoint.shape).items())
    finally:
        file.write_bytes(whole[file])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name(broken: Path, damage: str) -> None:
    damaged, words = DAMAGES[damage]
    Checkpoint.open(broken)
    damaged(broken)
    with pytest.raises(UsageError, match=words) as raised:
        Checkpoint.open(broken)
    assert str(broken) in str(raised.value)


def test_a_launcher_checks_without_torch(broken: Path) -> None:
    """So that nothing is started, and no memory taken, for a checkpoint that is damaged."""
    _change_tensors(broken, lambda tensors: tensors.update({DOWN: torch.zeros(64, 95)}))
    code = """import sys, ladder_sim_runtime.__main__ as m
code = m.main(sys.argv[1:])
sys.exit(9 if 'torch' in sys.modules else code)"""
    command = ["complete", "--model", str(broken), "--prompt", "x", "--tp", "2"]
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{DOWN} is [64, 95], must be [64, 96]" in done.stderr


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"rope_theta": 5e5, "rope_scaling": None}, "rope_theta", 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}, "rope_theta", 7e5),
        ({"rms_norm_eps": None}, "norm_eps", 1e-6),
        ({"model_type": "qwen2", "sliding_window": 64, "num_key_value_heads": 2}, "sliding_window", 0),
        ({"model_type": "mistral", "sliding_window": 64, "num_key_value_heads": 2}, "sliding_window", 64),
        ({"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}, "window_layers", (1,)),
        ({"model_type": "llamaLadder"}, "variant", "standard"),
        ({"model_type": "llamaLadder", "ladder_layers": None}, "variant", "standard"),
        ({"model_type": "qwen2", "num_key_value_heads": 2}, "out_bias", False),
        ({"model_type": "llamaLadder", "ladder_layers": [1, 0]}, "variant", "ladder"),
        ({"model_type": "llamaLadder", "ladder_layers": 0}, "variant", "standard"),
        ({"model_type": "llamaLadder", "ladder_layers": [0]}, "variant", "hybrid-ladder:1"),
        ({"ladder_sim_wiring": "delayed:1"}, "variant", "delayed:1"),
    ],
)
def test_configs_of_older_and_newer_transformers(change: dict[str, object], field: str, value: object) -> None:
    config: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 8,
    }
    assert getattr(ModelConfig.from_hf(config | change), field) == value
