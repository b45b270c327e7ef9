"""A wiring of one's own in a checkpoint: what transformers computes, the runtime computes at every degree."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ladder_sim.errors import UsageError
from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import own_wiring, parse
from ladder_sim.wirings.rules import WiringError
from ladder_sim_runtime.checkpoint.modeling_llama_ladder import LlamaLadderConfig, LlamaLadderForCausalLM
from ladder_sim_runtime.checkpoint.weights import fill
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.ranks import on_ranks
from tests.support.wirings import NEW

pytestmark = pytest.mark.torch

LAYERS = 4
SHAPE: dict[str, Any] = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
WHOLE = ("ladder-mlp", "upper-ladder-2", "two-lane")
TOKENS = torch.arange(18).reshape(2, 9) * 3 % 61


def rules_of(name: str, variant: str = "") -> dict[str, Any]:
    """Rules of one of the new wirings, or of a named one, by the numbers of layers."""
    given = variant or own_wiring(tomllib.loads(NEW[name]), f"{name}.toml")
    return parse(given).expanded(LAYERS)


def config_of(rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**SHAPE, "model_type": "llamaLadder", "ladder_sim_wiring": rules, **more}


def logits(comm: Communicator, config: dict[str, Any], state: dict[str, Tensor]) -> Tensor:
    shape = ModelConfig.from_hf(config)
    model = Decoder(shape, EngineConfig(prefill_logits="all"), comm, positions=16)
    fill(model, lambda name, _: state[name])
    with torch.inference_mode():
        return model(TOKENS, lay_out(shape.variant, shape.layers))


@pytest.mark.parametrize("name", [*WHOLE, "parallel", "ladder:2", "hybrid-ladder:2"])
def test_transformers_and_every_degree_compute_the_same(name: str, tmp_path: Path) -> None:
    rules = rules_of(name, "" if name in NEW else name)
    torch.manual_seed(0)
    model = LlamaLadderForCausalLM(LlamaLadderConfig(**SHAPE, ladder_sim_wiring=rules)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        wanted = model(TOKENS).logits
    state = {key: value.detach() for key, value in model.state_dict().items()}
    config = config_of(rules)
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        for got in on_ranks(size, folder, logits, config, state):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    # it is another model than a standard one
    plain = logits(Communicator(), {**SHAPE, "model_type": "llama"}, state)
    assert not torch.allclose(plain, wanted, atol=1e-2)


def test_what_is_learned_in_each_lane_has_gradients() -> None:
    model = LlamaLadderForCausalLM(LlamaLadderConfig(**SHAPE, ladder_sim_wiring=rules_of("two-lane")))
    model(TOKENS, labels=TOKENS).loss.backward()
    weights = {name: each.grad for name, each in model.named_parameters() if name.endswith("_weight")}
    assert len(weights) == LAYERS
    assert all(grad is not None and grad.abs().min() > 0 for grad in weights.values())


def test_transformers_points_to_ranks_where_these_read_their_own_parts() -> None:
    for name in set(NEW) - set(WHOLE):
        with pytest.raises(ValueError, match="complete --tp"):
            LlamaLadderForCausalLM(LlamaLadderConfig(**SHAPE, ladder_sim_wiring=rules_of(name)))


def test_the_degree_of_training_belongs_to_a_model_whose_ranks_read_their_own_parts() -> None:
    shape = ModelConfig.from_hf(config_of(rules_of("kraken-4"), ladder_sim_tp=8))
    with pytest.raises(WiringError, match="checkpoint was trained as kraken-4 at TP 8, not 4") as caught:
        shape.check_wiring(lay_out(shape.variant, LAYERS), 4)
    assert caught.value.hint == "--tp 8"
    shape.check_wiring(lay_out(shape.variant, LAYERS), 8)
    shape = ModelConfig.from_hf(config_of(rules_of("ladder-mlp"), ladder_sim_tp=8))
    shape.check_wiring(lay_out(shape.variant, LAYERS), 4)


def test_a_config_has_a_wiring_or_ladder_layers() -> None:
    with pytest.raises(UsageError, match="ladder_sim_wiring"):
        ModelConfig.from_hf(config_of(rules_of("ladder-mlp"), ladder_layers=2))
    json.dumps(config_of(rules_of("two-lane")))
