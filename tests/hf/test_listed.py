"""Models whose config lists their blocks: what is read, what is refused, and what it costs."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from ladder_sim import predict
from ladder_sim.costs.memory import memory_use
from ladder_sim.errors import LadderSimError, PartitionError, SpecError
from ladder_sim.hf.attention import Gqa, Index, Mla
from ladder_sim.hf.feed_forward import Dense, Moe
from ladder_sim.hf.fields import Fields
from ladder_sim.hf.listed import LAYER_DATA, described, read_layers
from ladder_sim.hf.mixer import Attend, BlockKind, Linear, Mixer, State
from ladder_sim.kernels import AttentionShape, Phase, StateShape
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from tests.support.graphs import build
from tests.support.strategies import damaged

MODEL = "qwen3-next-80b-a3b"
CONFIG = catalog.model_config(MODEL)
HIDDEN = 64
ATTEND = Attend(heads=8, kv_heads=2, key_dim=16, value_dim=8, window=32)
KINDS: tuple[BlockKind, ...] = (
    Gqa(hidden=HIDDEN, heads=8, kv_heads=2, head_dim=16, qk_norm="heads"),
    Mla(
        hidden=HIDDEN,
        heads=8,
        kv_lora_rank=32,
        q_lora_rank=0,
        nope_head_dim=16,
        rope_head_dim=8,
        value_head_dim=16,
        index=Index(heads=4, dim=16, top_k=128),
    ),
    Mixer(
        hidden=HIDDEN,
        inputs=((Linear(n=128, k=HIDDEN), Linear(n=48, k=HIDDEN, heads=2)), (Linear(n=8, k=HIDDEN, sharding="none"),)),
        cores=(ATTEND, dataclasses.replace(ATTEND, window=0, every=4, index=Index(heads=2, dim=8, top_k=16))),
        outputs=(Linear(n=HIDDEN, k=64, sharding="rows"),),
        norms=(128, 32),
        parameters=20_000,
    ),
    Moe(expert=Dense(hidden=32, width=16, gated=False), experts=8, experts_per_token=2, hidden=HIDDEN),
    Dense(hidden=HIDDEN, width=256, formats=(("mlp", "bf16"),)),
    Mixer(
        hidden=HIDDEN,
        inputs=((Linear(n=192, k=HIDDEN),), (Linear(n=24, k=128, sharding="rows"),), (Linear(n=128, k=8),)),
        cores=(State(heads=8, elements=1024, size_bytes=4608),),
        outputs=(Linear(n=HIDDEN, k=128, sharding="rows"),),
        parameters=30_000,
    ),
)


def config(*blocks: BlockKind, **fields: Any) -> dict[str, Any]:
    sizes = {"hidden_size": HIDDEN, "vocab_size": 1000, "max_position_embeddings": 4096}
    return {"model_type": LAYER_DATA, **sizes, **described(list(enumerate(blocks))), **fields}


def spec(document: dict[str, Any]) -> ModelSpec:
    return ModelSpec.from_hf(document, name="listed", source="listed.json")


def test_every_kind_is_read_as_it_was_written() -> None:
    document = json.loads(json.dumps(config(*KINDS)))
    fields = read_layers(Fields(document, "listed.json"))
    # precision is the checkpoint's
    assert fields["block_kinds"] == (*KINDS[:4], dataclasses.replace(KINDS[4], formats=()), *KINDS[5:])
    assert fields["block_order"] == tuple(range(len(KINDS)))
    assert fields["layers"] == 3


@given(damaged(config(*KINDS)))
def test_a_damaged_list_is_read_or_refused(content: bytes) -> None:
    try:
        document = json.loads(content)
    except ValueError:
        return
    if isinstance(document, dict) and document.get("model_type") == LAYER_DATA:
        try:
            model = spec(document)
        except LadderSimError:
            return
        assert len(model.kinds) == model.layers


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks": [0, 1, 2]}, "odd"),
        ({"kinds": []}, "not empty"),
        ({"blocks": [0, 99, 0, 99]}, "whole number from 0 to 5"),
        ({"layers": [0]}, "number for each"),
        ({"kinds": [{"kind": 7, "hidden": 8, "width": 8}] * 6}, "must be one of Gqa"),
        ({"kinds": [{"kind": "Dense", "hidden": 8}] * 6}, "Dense has no width"),
        ({"kinds": [{"kind": "Dense", "hidden": 8, "width": -1}] * 6}, "whole number"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    document = {**config(*KINDS), **change}
    if "blocks" in change:
        document["layers"] = change["blocks"]
    with pytest.raises(SpecError, match=said):
        spec(document)


def test_sizes_of_listed_blocks_cannot_be_changed_alone() -> None:
    model = catalog.model(MODEL)
    with pytest.raises(SpecError, match="its blocks have 16"):
        dataclasses.replace(model, heads=8)
    with pytest.raises(SpecError, match="its config lists 48"):
        dataclasses.replace(model, layers=49)
    assert dataclasses.replace(model, layers=4).kinds == model.kinds[:4]


def test_precision_is_that_of_each_layer() -> None:
    """Of a checkpoint whose second layer keeps attention's linear layers in 16 bits."""
    quantised = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.layers.1.self_attn*"]}
    blocks = [(0, KINDS[2]), (0, KINDS[3]), (1, KINDS[2]), (1, KINDS[3])]
    model = spec({**config(), **described(blocks), "quantization_config": quantised})
    assert [kind.attention.formats for kind in model.kinds] == [(), (("qkv", "bf16"), ("out", "bf16"))]
    assert model.weights_dtype == "fp8"


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_kernels_hold_the_weights(phase: Phase) -> None:
    """But for the gates of shared experts and the corrections of routers, which no kernel is made for."""
    model = catalog.model(MODEL)
    graph = build(Scenario(model=model, tp=1, stack="vllm"), phase, 1025)
    assert sum(op.weight_bytes for op in graph.ops()) == pytest.approx(2 * model.parameters, rel=1e-12)


def test_a_block_of_any_kind_ends_in_one_all_reduce() -> None:
    """And a linear layer of rows in front of a state in another one."""
    blocks = (KINDS[5], KINDS[3], KINDS[2], KINDS[5], KINDS[4], KINDS[1])
    graph = build(Scenario(model=spec(config(*blocks)), tp=2, stack="gpt-fast", dtype="bf16"), "decode", 100)
    reduced = [op.name for op in graph.ops() if op.kind == "all_reduce"]
    within = [name for name in reduced if name.endswith("in2_all_reduce")]
    assert len(reduced) - len(within) == len(blocks)
    assert within == ["layer0.attn.in2_all_reduce", "layer1.mlp.in2_all_reduce"]


def test_a_state_takes_the_same_memory_at_any_length() -> None:
    """36 of 48 layers of Qwen3-Next have states, and 12 keep two heads of 256 channels, keys and values, of a token."""
    model, tp = catalog.model(MODEL), 2
    one: dict[str, Any] = {"model": model, "tp": tp, "dtype": "bf16", "kv_dtype": "bf16", "stack": "vllm", "batch": 3}
    held = [memory_use(Scenario(**one, prompt=prompt, gen=1)).kv_cache_bytes for prompt in (1000, 3000)]
    token_bytes = 12 * 2 * 256 * 2
    assert held[1] - held[0] == 3 * 2000 * token_bytes
    assert held[0] == 3 * (1001 * token_bytes + 36 * 2_162_688 / tp)


def test_a_state_takes_the_same_time_at_any_length() -> None:
    scenario = Scenario(model=catalog.model(MODEL), tp=2, stack="vllm", batch=4)
    ops = [
        {op.name: op.shape for op in build(scenario, "decode", length).ops() if op.kind == "attention"}
        for length in (1000, 5000)
    ]
    states = {name for name, shape in ops[0].items() if isinstance(shape, StateShape)}
    assert len(states) == 36
    for name in ops[0]:
        before, after = (each[name] for each in ops)
        grows = isinstance(before, AttentionShape)
        assert (after.moved_bytes > before.moved_bytes) == (after.flops > before.flops) == grows, name


def test_chosen_entries_bound_what_attention_reads() -> None:
    scenario = Scenario(model=spec(config(KINDS[1], KINDS[4])), tp=2, stack="vllm", batch=2)
    short, long, longer = (
        {op.name.rpartition(".")[2]: op.shape for op in build(scenario, "decode", length).ops()}["attention"]
        for length in (100, 1000, 5000)
    )
    assert short.flops < long.flops
    # beyond them grows what the index scores, all of the cache in 8 bits, on every rank
    assert longer.flops - long.flops == 2 * 2 * 4 * 16 * 4000
    assert longer.moved_bytes - long.moved_bytes == 2 * 16 * 4000


def test_ranks_share_heads_or_refuse() -> None:
    model = catalog.model(MODEL)
    assert model.tp_degrees(64) == (1, 2, 4, 8, 16)
    with pytest.raises(PartitionError, match="heads is"):
        Scenario(model=model, tp=32, nodes=4)


def test_the_answer_says_where_layers_come_from() -> None:
    predicted = predict(model=MODEL, tp=4, cluster="h200-sxm", variants=("standard", "ladder"))
    (caution,) = [text for text in predicted["ladder"].confidence.warnings if "traced from transformers" in text]
    shares = [int(number) for number in re.findall(r"(\d+)% (?:measured|fitted|transferred|roofline)", caution)]
    assert len(shares) == 4
    assert 50 < sum(shares) < 100


def test_a_file_of_this_form_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladder_sim.hf.traced._installed", lambda package: False)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(CONFIG))
    assert catalog.model(str(path)).layers == 48


def test_a_file_is_read_anew_only_if_it_says_something_else(tmp_path: Path) -> None:
    """Of Qwen3.5-397B reading 120 blocks took a third of a prediction."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps(CONFIG))
    first = catalog.model(str(path))
    assert catalog.model(str(path)) is first
    path.write_text(json.dumps({**CONFIG, "vocab_size": 1000}))
    assert catalog.model(str(path)).vocab == 1000
