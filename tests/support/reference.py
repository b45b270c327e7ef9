"""Every residual wiring, written straight from its equation: plain tensors, no sharding, nothing asynchronous.

Each rank's partial result is the whole computation over that rank's heads and MLP columns; the sum over ranks is a sum.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from runtime.config import ModelConfig

Weights = Mapping[str, Tensor]


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Full tensors by Hugging Face's names."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, wide = config.hidden, config.intermediate
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }
    if config.gated_mlp:
        layer["mlp.gate_proj.weight"] = (wide, hidden)
    if config.qkv_bias:
        layer |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.out_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.mlp_bias:
        layer |= {"mlp.up_proj.bias": (wide,), "mlp.down_proj.bias": (hidden,)}
        if config.gated_mlp:
            layer["mlp.gate_proj.bias"] = (wide,)
    shapes = {f"model.layers.{i}.{name}": shape for i in range(config.layers) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (config.vocab, hidden), "model.norm.weight": (hidden,)}
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    return shapes


def reference_logits(
    config: ModelConfig, weights: Weights, tokens_BT: Tensor, variant: str, ranks: int
) -> list[Tensor]:
    """Logits of every position, one tensor per rank."""
    model = _Equations(config, weights, ranks)
    embedded = weights["model.embed_tokens.weight"][tokens_BT]
    family, _, parameter = variant.partition(":")
    if family in ("desync", "upper-bound"):
        last = model.apart([embedded] * ranks, every=int(parameter) if parameter else None)
    elif family == "parallel":
        last = [model.parallel(embedded)] * ranks
    else:
        ladder_from = {"standard": config.layers, "ladder": 0}.get(family, config.layers - int(parameter or 0))
        last = [model.together(embedded, ladder_from)] * ranks
    head = weights["model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"]
    return [model.norm(x, "model.norm.weight") @ head.T for x in last]


class _Equations:
    def __init__(self, config: ModelConfig, weights: Weights, ranks: int) -> None:
        self.config, self.weights, self.ranks = config, weights, ranks

    def together(self, embedded: Tensor, ladder_from: int) -> Tensor:
        """``x[i+1] = x[i] + h[i+1](x[i])``, and from layer `ladder_from` on ``h[i+1](x[i-1])``."""
        x = [embedded]
        for i in range(2 * self.config.layers):
            before = x[max(i - 1, 0)] if i // 2 >= ladder_from else x[i]
            h = self.attention if i % 2 == 0 else self.mlp
            x.append(x[i] + sum(h(i // 2, before, rank) for rank in range(self.ranks)))
        return x[-1]

    def parallel(self, x: Tensor) -> Tensor:
        """``x + attention(n(x)) + mlp(n(x))``, one norm."""
        for layer in range(self.config.layers):
            shared = f"model.layers.{layer}.input_layernorm.weight"
            x = x + sum(
                self.attention(layer, x, rank) + self.mlp(layer, x, rank, norm=shared) for rank in range(self.ranks)
            )
        return x

    def apart(self, x: list[Tensor], every: int | None) -> list[Tensor]:
        """Each rank's own residual; after every N-th block and the last they become ``sum(h + x / ranks)``."""
        blocks = 2 * self.config.layers
        for i in range(blocks):
            h = self.attention if i % 2 == 0 else self.mlp
            outputs = [h(i // 2, x[rank], rank) for rank in range(self.ranks)]
            if every is not None and ((i + 1) % every == 0 or i == blocks - 1):
                x = [sum(outputs) + sum(x) / self.ranks] * self.ranks
            else:
                x = [own + output for own, output in zip(x, outputs, strict=True)]
        return x

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.config.norm_eps).sqrt() * self.weights[name]

    def attention(self, layer: int, x: Tensor, rank: int) -> Tensor:
        config, of = self.config, self._of(layer, "self_attn")
        width = config.head_dim
        n = self.norm(x, f"model.layers.{layer}.input_layernorm.weight")
        out = x.new_zeros(x.shape)
        each = config.heads // self.ranks
        for head in range(rank * each, (rank + 1) * each):
            kv = head * config.kv_heads // config.heads
            rows, kv_rows = slice(head * width, (head + 1) * width), slice(kv * width, (kv + 1) * width)
            q = self._rotated(n @ of("q_proj.weight")[rows].T + of("q_proj.bias", config.qkv_bias)[rows])
            k = self._rotated(n @ of("k_proj.weight")[kv_rows].T + of("k_proj.bias", config.qkv_bias)[kv_rows])
            v = n @ of("v_proj.weight")[kv_rows].T + of("v_proj.bias", config.qkv_bias)[kv_rows]
            scores = q @ k.transpose(1, 2) / math.sqrt(width)
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            out = out + scores.masked_fill(future, -math.inf).softmax(-1) @ v @ of("o_proj.weight")[:, rows].T
        return out + of("o_proj.bias", config.out_bias) / self.ranks

    def mlp(self, layer: int, x: Tensor, rank: int, norm: str = "") -> Tensor:
        config, of = self.config, self._of(layer, "mlp")
        n = self.norm(x, norm or f"model.layers.{layer}.post_attention_layernorm.weight")
        each = config.intermediate // self.ranks
        columns = slice(rank * each, (rank + 1) * each)
        up = n @ of("up_proj.weight")[columns].T + of("up_proj.bias", config.mlp_bias)[columns]
        if config.gated_mlp:
            gate = n @ of("gate_proj.weight")[columns].T + of("gate_proj.bias", config.mlp_bias)[columns]
            up = gate * gate.sigmoid() * up
        else:
            up = up * up.sigmoid()
        return up @ of("down_proj.weight")[:, columns].T + of("down_proj.bias", config.mlp_bias) / self.ranks

    def _of(self, layer: int, part: str) -> Callable[..., Tensor]:
        def find(name: str, there: bool = True) -> Tensor:
            if not there:
                weight = self.weights[f"model.layers.{layer}.{part}.{name.replace('bias', 'weight')}"]
                return weight.new_zeros(weight.shape[0])
            return self.weights[f"model.layers.{layer}.{part}.{name}"]

        return find

    def _rotated(self, x: Tensor) -> Tensor:
        """Channel j and j + K/2 as one complex number, turned by the position's angle."""
        half = x.shape[-1] // 2
        angles = [[t * self._frequency(j, half) for j in range(half)] for t in range(x.shape[1])]
        turn = torch.polar(torch.ones(len(angles), half, dtype=x.dtype), torch.tensor(angles, dtype=x.dtype))
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    def _frequency(self, channel: int, half: int) -> float:
        """Radians per position, stretched as Llama 3.1's are."""
        frequency = self.config.rope_theta ** (-channel / half)
        scaling = self.config.rope_scaling
        if scaling is None:
            return frequency
        wavelength = 2 * math.pi / frequency
        if wavelength < scaling.original_positions / scaling.high_freq_factor:
            return frequency
        if wavelength > scaling.original_positions / scaling.low_freq_factor:
            return frequency / scaling.factor
        smooth = (scaling.original_positions / wavelength - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        return (1 - smooth) * frequency / scaling.factor + smooth * frequency
