"""Tiny random checkpoints, saved by transformers, with a tokenizer trained on a page of text.

``python -m tests.support.checkpoints DIR`` makes the one that docs/runtime.md shows.
"""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

# the folders are local
os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import torch
import transformers

# what the tokenizer is trained on
PAGE = """Every rank of a tensor-parallel group holds a slice of every layer and computes a part of its output. An
all-reduce adds the parts up, and the next block waits for the sum. Ladder residual lets the next block begin with the
sum before, so that the message travels while the block computes. The output arrives later and is added one block late.
A model that was trained with the usual wiring has to be trained more after its upper layers have been rewired.
"""
VOCAB = 320


class Family(NamedTuple):
    """A model type and what sets it apart."""

    config: type[Any]
    model: type[Any]
    settings: dict[str, Any]


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 16.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}
# DeepSeek's attention and experts
LATENT = {
    "q_lora_rank": 28,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 40,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}
FAMILIES = {
    "llama": Family(
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"num_key_value_heads": 2, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama-tied-biased": Family(
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"num_key_value_heads": 4, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": Family(
        transformers.MistralConfig,
        transformers.MistralForCausalLM,
        {"num_key_value_heads": 1, "head_dim": 24, "sliding_window": 6},
    ),
    "qwen2": Family(transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {"num_key_value_heads": 2}),
    "qwen3": Family(
        transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"num_key_value_heads": 2, "head_dim": 24}
    ),
    "olmo2": Family(transformers.Olmo2Config, transformers.Olmo2ForCausalLM, {"num_key_value_heads": 2}),
    # ranks hold the same key/value head
    "olmo2-tied": Family(
        transformers.Olmo2Config,
        transformers.Olmo2ForCausalLM,
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "mixtral": Family(
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        {"num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 2},
    ),
    # layers 0 and 2 are dense
    "qwen3-moe": Family(
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {
            "num_key_value_heads": 2,
            "head_dim": 24,
            "moe_intermediate_size": 40,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3-moe-normalised": Family(
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {
            "num_key_value_heads": 4,
            "moe_intermediate_size": 40,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    # V2-Lite: queries without a latent vector
    "deepseek-v2-lite": Family(
        transformers.DeepseekV2Config,
        transformers.DeepseekV2ForCausalLM,
        {**LATENT, "q_lora_rank": None, "n_shared_experts": 2, "rope_parameters": YARN},
    ),
    "deepseek-v2": Family(
        transformers.DeepseekV2Config,
        transformers.DeepseekV2ForCausalLM,
        {
            **LATENT,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 16.0,
            "attention_bias": True,
            "rope_parameters": {**YARN, "mscale": 0.8},
        },
    ),
    "deepseek-v3": Family(
        transformers.DeepseekV3Config,
        transformers.DeepseekV3ForCausalLM,
        # not that of the norms of latent vectors
        {**LATENT, "n_group": 4, "topk_group": 2, "rope_parameters": YARN, "rms_norm_eps": 1e-3},
    ),
    "qwen2-tied": Family(
        transformers.Qwen2Config,
        transformers.Qwen2ForCausalLM,
        {"num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    # the first two layers attend to all tokens
    "qwen2-windows": Family(
        transformers.Qwen2Config,
        transformers.Qwen2ForCausalLM,
        {
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 2,
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4},
        },
    ),
    "llama-dynamic": Family(
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "qwen3-yarn": Family(
        transformers.Qwen3Config,
        transformers.Qwen3ForCausalLM,
        {"num_key_value_heads": 2, "head_dim": 24, "rope_parameters": YARN},
    ),
}


def reference(family: str, layers: int = 4, **changed: Any) -> Any:
    """A random model of transformers, in float32, with weights so large that its logits differ."""
    torch.manual_seed(1)
    config, model, settings = FAMILIES[family]
    made = model(
        config(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=512,
            initializer_range=0.15,
            bos_token_id=0,
            eos_token_id=1,
            **settings | changed,
        )
    )
    with torch.no_grad():
        # transformers begins with biases of zero and equal norms
        for name, weight in (*made.named_parameters(), *made.named_buffers()):
            if name.endswith("bias"):
                weight.normal_(std=0.3)
            elif name.endswith("norm.weight"):
                weight.normal_(1.0, 0.3)
    return made.eval()


def save_checkpoint(folder: Path, family: str = "llama", *, shard: str = "5GB", **changed: Any) -> Any:
    """Save a model with its tokenizer; returns the model."""
    transformers.utils.logging.disable_progress_bar()
    model = reference(family, **changed)
    model.save_pretrained(folder, max_shard_size=shard)
    tokenizer().save(str(folder / "tokenizer.json"))
    return model


def tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE that puts <s> before every text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([PAGE], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def train(model: Any, steps: int = 80) -> None:
    """Have a model learn the page by heart."""
    ids = torch.tensor([tokenizer().encode(PAGE).ids])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    checkpoint = Path(sys.argv[1])
    trained = save_checkpoint(checkpoint)
    train(trained)
    trained.save_pretrained(checkpoint)
    checkpoint.with_suffix(".txt").write_text(PAGE)
