"""Layers of any decoder, as transformers builds it on the meta device."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ladder_sim import predict
from ladder_sim.errors import MissingPackageError, SpecError
from ladder_sim.hf.attention import Mla
from ladder_sim.hf.feed_forward import Moe
from ladder_sim.hf.mixer import Attend, Mixer, State
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim_runtime.model_trace import trace
from tests.conftest import DATA

pytestmark = pytest.mark.torch

CONFIGS: dict[str, Any] = json.loads((DATA / "decoder_configs.json").read_text())
# one model of each family of the catalog
FAMILIES = (
    *("bloom-176b-gated", "deepseek-v2-lite", "deepseek-v3", "gemma-3-4b", "glm-4.5-air", "gpt-oss-20b", "kimi-k2"),
    *("llama-3.2-1b", "llama-4-scout", "minimax-m2.5", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b", "qwen3-30b-a3b"),
    "qwen3-32b",
)
# a decoder of two layers with a convolution, and of one with attention, that no hand-written reader knows
TINY = {
    "model_type": "lfm2",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "block_auto_adjust_ff_dim": False,
    "vocab_size": 1000,
    "layer_types": ["conv", "conv", "full_attention"],
}


def traced(config: dict[str, Any], name: str) -> ModelSpec:
    return ModelSpec.from_hf(trace(config, source=name), name=name, source=name)


def of_type(name: str) -> ModelSpec:
    return traced(CONFIGS[name]["config"], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_hand_written_families_are_traced_as_they_are(name: str) -> None:
    config = catalog.model_config(name)
    quantised = {key: config[key] for key in ("quantization_config",) if key in config}
    listed = {**trace(config, source=name), **quantised}
    model, own = ModelSpec.from_hf(listed, name=name, source=name), catalog.model(name)
    assert model.block_kinds
    assert model.parameters == pytest.approx(own.parameters, rel=1e-3)
    assert model.tp_degrees(8) == own.tp_degrees(8)
    for load in ({"batch": 4}, {"concurrency": 32}):
        plan: dict[str, Any] = {"cluster": "b300-sxm", "tp": own.tp_degrees(8)[-1], **load}
        times = [
            predict(Scenario(model=each, **plan), variants=["standard"], ignore_memory=True)["standard"]
            for each in (model, own)
        ]
        # issued are the same kernels; what differs is what a family's norms and scales of queries are made of
        assert times[0].tpot_s == pytest.approx(times[1].tpot_s, rel=0.01)
        assert times[0].ttft_s == pytest.approx(times[1].ttft_s, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_families_without_a_reader_are_predicted(name: str) -> None:
    model, published = of_type(name), CONFIGS[name]["parameters"]
    if published:
        assert model.parameters == pytest.approx(published, rel=0.01)
    scenario = Scenario(model=model, cluster="b300-sxm", tp=model.tp_degrees(8)[-1], concurrency=16)
    predicted = predict(scenario, variants=("standard", "ladder"), ignore_memory=True)
    assert 0.0 < predicted["standard"].breakdown.comm_s < predicted["standard"].request_s
    # ladder hides what standard waits for
    hidden = {name: each.breakdown.hidden_share for name, each in predicted.items()}
    assert hidden["standard"] < 0.1 < hidden["ladder"]


# in the catalog as they were traced
LISTED = {
    "deepseek_v32": "deepseek-v3.2",
    "deepseek_v4": "deepseek-v4-flash",
    "glm_moe_dsa": "glm-5.2",
    "minimax_m3": "minimax-m3",
    "mimo_v2": "mimo-v2-flash",
    "nemotron_h": "nemotron-3-super-120b-a12b",
    "qwen3_5_moe": "qwen3.5-397b-a17b",
    "qwen3_next": "qwen3-next-80b-a3b",
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), LISTED.items())
def test_the_catalog_lists_what_is_traced(kind: str, name: str) -> None:
    listed, found = catalog.model_config(name), trace(CONFIGS[kind]["config"], source=name)
    for field in ("hidden_size", "vocab_size", "kinds", "blocks", "layers", "source"):
        assert listed[field] == found[field], field


def cores(model: ModelSpec) -> list[Attend | State]:
    return [core for kind in model.block_kinds if isinstance(kind, Mixer) for core in kind.cores]


def test_states_are_those_of_the_cache() -> None:
    """Qwen3-Next: 32 heads of 128 x 128 in 32 bits, and 4 tokens of 8192 channels in 16 bits."""
    model = of_type("qwen3_next")
    (state,) = [core for core in cores(model) if isinstance(core, State)]
    bytes_of_both = 4 * 32 * 128 * 128 + 2 * 4 * 8192
    own = {"heads": 32, "elements": 32 * 128 * 128, "size_bytes": bytes_of_both, "channels": 8192}
    assert state == State(**own, rule="gated-delta")
    (attend,) = [core for core in cores(model) if isinstance(core, Attend)]
    assert attend == Attend(heads=16, kv_heads=2, key_dim=256, value_dim=256)
    # three of four layers have a state
    assert sum(isinstance(core, State) for kind in model.kinds for core in kind.attention.cores) == 36
    (gates,) = {kind.gates for kind in model.block_kinds if isinstance(kind, Mixer) and kind.cores == (attend,)}
    assert gates == 16 * 256


def test_windows_and_widths_are_those_of_each_layer() -> None:
    """MiMo-V2-Flash: five of six layers attend to 128 tokens and themselves, with more key/value heads."""
    model = of_type("mimo_v2")
    assert set(cores(model)) == {
        Attend(heads=64, kv_heads=4, key_dim=192, value_dim=128),
        Attend(heads=64, kv_heads=8, key_dim=192, value_dim=128, window=129),
    }


def test_indexes_choose_for_their_layer_and_later_ones() -> None:
    """GLM-5.2: 32 heads of 128, of whose choice of 2048 tokens three of four layers take an earlier layer's."""
    kinds = [kind for kind in of_type("glm_moe_dsa").block_kinds if isinstance(kind, Mla)]
    assert [(kind.index.heads, kind.index.dim, kind.index.top_k) for kind in kinds if kind.index] == [
        (32, 128, 2048),
        (0, 0, 2048),
    ]


def test_entries_of_several_tokens_come_behind_a_window() -> None:
    """DeepSeek-V4: a window of 128 tokens, and entries for 4 tokens, of which 512 are chosen, or for 128."""
    found = {(core.window, core.every, core.index and core.index.top_k) for core in cores(of_type("deepseek_v4"))}
    assert found == {(128, 1, None), (0, 4, 512), (0, 128, None)}


def test_blocks_may_be_whole_layers_and_experts_narrower_than_the_residual() -> None:
    """Nemotron 3 Super: 88 layers of one block each, whose 512 experts are 1024 channels wide at both ends."""
    model = of_type("nemotron_h")
    assert (model.layers, len(model.block_order)) == (44, 88)
    (moe,) = [kind for kind in model.block_kinds if isinstance(kind, Moe)]
    assert (moe.hidden, moe.expert.hidden, moe.experts, moe.experts_per_token) == (4096, 1024, 512, 22)


def test_a_layer_of_two_mixers_ends_once() -> None:
    """Falcon-H1: attention and a state-space model read the same, and their outputs are added up."""
    (kind,) = [kind for kind in of_type("falcon_h1").block_kinds if isinstance(kind, Mixer)]
    assert [type(core) for core in kind.cores] == [State, Attend]
    assert [linear.n for linear in kind.outputs] == [5120, 5120]


def test_low_rank_inputs_are_on_every_rank_and_rows_are_summed() -> None:
    """Kimi Linear makes decay and gate in two steps; Jamba's state-space layers need a sum before their time steps."""
    kimi = next(kind for kind in of_type("kimi_linear").block_kinds if isinstance(kind, Mixer))
    assert {(linear.n, linear.sharding) for linear in kimi.linears if linear.n == 128} == {(128, "none")}
    small = {**CONFIGS["jamba"]["config"], "num_hidden_layers": 8}
    jamba = next(kind for kind in traced(small, "jamba").block_kinds if isinstance(kind, Mixer))
    assert [linear.sharding for linear in jamba.linears] == ["columns", "rows", "rows"]


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    own = {"auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}, "_name_or_path": str(tmp_path)}
    assert traced({**TINY, **own}, "tiny") == traced(TINY, "tiny")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "llada2"}, "neither ladder-sim nor transformers"),
        ({"num_attention_heads": "many"}, "cannot build it"),
        ({"layer_types": ["conv"] * 3}, "cannot build it"),
    ],
)
def test_what_cannot_be_traced_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        trace({**TINY, **change}, source="tiny")


def test_a_type_without_a_reader_is_traced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own; what it found is kept, and then neither torch nor transformers is needed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(TINY))
    model = catalog.model(str(path))
    assert (model.name, model.layers, model.family) == ("tiny", 3, "lfm2")
    assert model.origin.startswith("traced from transformers")
    loaded = [name for name in ("torch", "transformers") if name in _modules_of_a_prediction(path)]
    assert loaded == []
    assert not model.multimodal
    monkeypatch.setattr("ladder_sim.hf.traced._installed", lambda package: False)
    catalog._of_config.cache_clear()
    assert catalog.model(str(path)) == model
    path.write_text(json.dumps({**TINY, "vocab_size": 2000}))
    with pytest.raises(MissingPackageError, match="lfm2") as missing:
        catalog.model(str(path))
    assert "[trace]" in missing.value.hint


def _modules_of_a_prediction(path: Path) -> str:
    code = f"import sys; from ladder_sim.specs import catalog; catalog.model({str(path)!r}); print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_errors_of_the_trace_are_those_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, "model_type": "llada2"}))
    with pytest.raises(SpecError, match="model_type is llada2") as refused:
        catalog.model(str(path))
    assert "newer transformers" in refused.value.hint
