"""Kinds of attention and of feed-forward blocks: read from published config.json files, refused where impossible."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.hf.config import Yarn
from ladder_sim.hf.feed_forward import Routing
from ladder_sim_runtime.checkpoint.tensors import tensor_shapes
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.memory import Workload, check_fits
from ladder_sim_runtime.model.decoder import Decoder

pytestmark = pytest.mark.torch

# fields of the config.json files on Hugging Face that say what a model is
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
    "sliding_window": None,
    "vocab_size": 32000,
}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}
V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 128,
    "vocab_size": 102400,
}
V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # sizes that the models' pages on Hugging Face give for their weights; of V3 the paper's, without the layer that
        # predicts a second token (arXiv 2412.19437)
        (MIXTRAL, 46_702_792_704),
        (QWEN3, 30_532_122_624),
        (V2_LITE, 15_706_484_224),
        (V3, 671_026_419_200),
    ],
    ids=["mixtral", "qwen3", "v2-lite", "v3"],
)
def test_a_model_has_as_many_parameters_as_published(config: dict[str, Any], parameters: int) -> None:
    shape = ModelConfig.from_hf(config)
    assert sum(math.prod(shape) for shape in tensor_shapes(shape).values()) == parameters


def test_what_the_published_files_say() -> None:
    v3 = ModelConfig.from_hf(V3)
    assert (v3.q_lora_rank, v3.kv_lora_rank, v3.rope_head_dim, v3.value_head_dim) == (1536, 512, 64, 128)
    assert v3.rope_interleaved
    assert (v3.experts, v3.experts_per_token, v3.expert_intermediate, v3.shared_intermediate) == (256, 8, 2048, 2048)
    assert v3.dense_layers == (0, 1, 2)
    assert v3.routing == Routing(
        sigmoid=True, biased_choice=True, groups=8, top_groups=4, group_best=2, normalized=True, scale=2.5
    )
    assert isinstance(v3.rope_scaling, Yarn)
    assert (v3.rope_scaling.amplitude, v3.rope_scaling.score_scale) == (1.0, pytest.approx(1.3689**2, rel=1e-4))
    assert (v3.head_dim, v3.kv_heads) == (192, 128)
    assert ModelConfig.from_hf(V3 | {"model_type": "kimi_k2"}) == replace(v3, family="kimi_k2")
    qwen3 = ModelConfig.from_hf(QWEN3)
    assert qwen3.qk_norm == "heads"
    assert (qwen3.experts, qwen3.experts_per_token, qwen3.expert_intermediate) == (128, 8, 768)
    assert qwen3.routing == Routing()
    # the files of transformers 5 name the experts like Mixtral's
    renamed = {key: value for key, value in QWEN3.items() if key != "num_experts"} | {"num_local_experts": 128}
    assert ModelConfig.from_hf(renamed) == qwen3


def test_layers_between_steps_and_in_a_list_are_dense() -> None:
    shape = ModelConfig.from_hf({**QWEN3, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert [layer for layer in range(6) if shape.has_experts(layer)] == [1, 5]
    assert [shape.mlp_of(layer) for layer in range(6)] == [6144, 0, 6144, 6144, 6144, 0]


def test_the_cache_of_latent_attention_is_a_latent_vector_and_a_key() -> None:
    """On every rank the whole of it."""
    shape = ModelConfig.from_hf({**V3, "num_hidden_layers": 4})
    with torch.device("meta"):
        cache = Decoder(shape, EngineConfig(ep=8), Communicator(8), positions=10).cache(batch=3)
    assert cache.shape == (4, 3, 10, 512 + 64)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (8, 1), (8, 2), (8, 8), (16, 4)])
def test_ranks_hold_equal_parts_of_the_experts(tp: int, ep: int) -> None:
    shape = ModelConfig.from_hf({**V3, "num_hidden_layers": 4})
    with torch.device("meta"):
        layer = Decoder(shape, EngineConfig(ep=ep), Communicator(tp), positions=1).layers[3]
    assert layer.experts is not None
    assert layer.experts.up_LND.shape == (256 // ep, 2 * 2048 * ep // tp, 7168)
    assert layer.experts.down_LDI.shape == (256 // ep, 7168, 2048 * ep // tp)


@pytest.mark.parametrize(
    ("config", "change", "part"),
    [
        (QWEN3, {"num_local_experts": 64}, "num_local_experts is 64: must be num_experts, 128, which means the same"),
        (QWEN3, {"num_experts_per_tok": 129}, "num_experts_per_tok is 129: must be at most num_experts, 128"),
        (QWEN3, {"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        (QWEN3, {"mlp_only_layers": [48]}, "mlp_only_layers: a layer is 48: must be a whole number from 0 to 47"),
        (V3, {"n_group": 7}, "n_group is 7: must divide n_routed_experts, 256"),
        (V3, {"topk_group": 9}, "topk_group is 9: must be a whole number from 1 to 8"),
        (V3, {"n_group": 64, "topk_group": 1}, "a token chooses from 4 experts"),
        (V3, {"topk_method": "random"}, "unknown topk_method 'random'"),
        (V3, {"scoring_func": "tanh"}, "unknown scoring_func 'tanh'"),
        (V3, {"v_head_dim": None}, "v_head_dim is missing"),
        (V3, {"model_type": "deepseek_v32"}, "'deepseek_v32' is not a mixture-of-experts type"),
        (QWEN3, {"model_type": "olmoe"}, "'olmoe' is not a mixture-of-experts type"),
    ],
)
def test_a_config_that_cannot_be(config: dict[str, Any], change: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError) as raised:
        ModelConfig.from_hf(config | change)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("config", "tp", "ep", "part"),
    [
        (MIXTRAL, 4, 3, "--ep 3: must divide 4 ranks and 8 experts"),
        (MIXTRAL, 2, 4, "--ep 4: must divide 2 ranks and 8 experts"),
        (MIXTRAL, 16, 16, "--ep 16: must divide 16 ranks and 8 experts"),
        (
            V2_LITE | {"moe_intermediate_size": 1404, "n_shared_experts": 4},
            16,
            2,
            "is 1404: not divisible by 8 ranks",
        ),
        (V3, 3, 1, "3 ranks cannot share the model evenly: heads is 128"),
    ],
)
def test_degrees_that_do_not_divide(config: dict[str, Any], tp: int, ep: int, part: str) -> None:
    with pytest.raises(InfeasibleError) as raised:
        ModelConfig.from_hf(config).check_ranks(tp, ep)
    assert part in str(raised.value)


def test_what_a_model_with_experts_needs() -> None:
    """All experts count, not those that one token passes."""
    shape = ModelConfig.from_hf(MIXTRAL)
    work = Workload(batch=1, prompt=1, gen=1, dtype=torch.bfloat16)
    check_fits(shape, EngineConfig(), work, Communicator(), 100e9)
    with pytest.raises(InfeasibleError, match=r"93\.\d GB needed per rank"):
        check_fits(shape, EngineConfig(), work, Communicator(), 90e9)
