"""Every residual wiring, written straight from its equation: plain tensors, no sharding, nothing asynchronous.

Each rank's partial result is the whole computation over that rank's heads, MLP columns and experts; the sum over ranks
is a sum.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from runtime.config import ModelConfig
from runtime.kinds import Experts, Yarn

Weights = Mapping[str, Tensor]


def reference_logits(
    config: ModelConfig,
    weights: Weights,
    tokens_BT: Tensor,
    variant: str,
    ranks: int,
    ep: int = 1,
    group: int = 0,
    groups: int = 1,
) -> list[Tensor]:
    """Logits of every position, one tensor per rank; experts are distributed in `ep` parts over the ranks.

    Those of other groups have experts too, and requests of their own, which do not matter to these.
    """
    model = _Equations(config, weights, ranks, ep, group, groups)
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
    def __init__(self, config: ModelConfig, weights: Weights, ranks: int, ep: int, group: int, groups: int) -> None:
        self.config, self.weights, self.ranks, self.ep = config, weights, ranks, ep
        self.group, self.groups = group, groups

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
            reduces = every is not None and ((i + 1) % every == 0 or i == blocks - 1)
            outputs = [
                self.attention(i // 2, x[rank], rank)
                if i % 2 == 0
                else self.mlp(i // 2, x[rank], rank, alone=not reduces)
                for rank in range(self.ranks)
            ]
            if reduces:
                x = [sum(outputs) + sum(x) / self.ranks] * self.ranks
            else:
                x = [own + output for own, output in zip(x, outputs, strict=True)]
        return x

    def norm(self, x: Tensor, name: str, eps: float | None = None) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + (eps or self.config.norm_eps)).sqrt() * self.weights[name]

    def attention(self, layer: int, x: Tensor, rank: int) -> Tensor:
        config, of = self.config, self._of(layer, "self_attn")
        n = self.norm(x, f"model.layers.{layer}.input_layernorm.weight")
        out = x.new_zeros(x.shape)
        each = config.heads // self.ranks
        for head in range(rank * each, (rank + 1) * each):
            q, k, v = self._latent_head(layer, n, head) if config.latent else self._head(layer, n, head)
            columns = slice(head * v.shape[-1], (head + 1) * v.shape[-1])
            scores = q @ k.transpose(1, 2) / math.sqrt(config.head_dim)
            if config.latent and isinstance(config.rope_scaling, Yarn):
                scores = scores * config.rope_scaling.score_scale
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            out = out + scores.masked_fill(future, -math.inf).softmax(-1) @ v @ of("o_proj.weight")[:, columns].T
        return out + of("o_proj.bias", config.out_bias) / self.ranks

    def _head(self, layer: int, n: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of one query head."""
        config, of = self.config, self._of(layer, "self_attn")
        width, kv = config.head_dim, head * config.kv_heads // config.heads
        rows, kv_rows = slice(head * width, (head + 1) * width), slice(kv * width, (kv + 1) * width)
        q = n @ of("q_proj.weight")[rows].T + of("q_proj.bias", config.qkv_bias)[rows]
        k = n @ of("k_proj.weight")[kv_rows].T + of("k_proj.bias", config.qkv_bias)[kv_rows]
        v = n @ of("v_proj.weight")[kv_rows].T + of("v_proj.bias", config.qkv_bias)[kv_rows]
        if config.qk_norm:
            where = f"model.layers.{layer}.self_attn"
            q, k = self.norm(q, f"{where}.q_norm.weight"), self.norm(k, f"{where}.k_norm.weight")
        return self._rotated(q), self._rotated(k), v

    def _latent_head(self, layer: int, n: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same of latent attention."""
        config, of, where = self.config, self._of(layer, "self_attn"), f"model.layers.{layer}.self_attn"
        latent = config.latent
        assert latent is not None
        width, plain = config.head_dim, config.head_dim - latent.rope_dim
        source, name = n, "q_proj"
        if latent.q_rank:
            queries = n @ of("q_a_proj.weight").T + of("q_a_proj.bias", config.qkv_bias)
            source, name = self.norm(queries, f"{where}.q_a_layernorm.weight", 1e-6), "q_b_proj"
        q = source @ of(f"{name}.weight")[head * width : (head + 1) * width].T
        c = n @ of("kv_a_proj_with_mqa.weight").T + of("kv_a_proj_with_mqa.bias", config.qkv_bias)
        shared = self._rotated(c[..., latent.kv_rank :])
        c = self.norm(c[..., : latent.kv_rank], f"{where}.kv_a_layernorm.weight", 1e-6)
        made = plain + latent.value_dim
        kv = c @ of("kv_b_proj.weight")[head * made : (head + 1) * made].T
        q = torch.cat((q[..., :plain], self._rotated(q[..., plain:])), -1)
        return q, torch.cat((kv[..., :plain], shared), -1), kv[..., plain:]

    def mlp(self, layer: int, x: Tensor, rank: int, norm: str = "", *, alone: bool = False) -> Tensor:
        """Of a rank, with its experts and those of the ranks at its place in other groups; `alone` without these."""
        n = self.norm(x, norm or f"model.layers.{layer}.post_attention_layernorm.weight")
        experts = self.config.experts_of(layer)
        if experts is None:
            return self._mlp(layer, "mlp", n, rank, self.ranks)
        out = self._mlp(layer, "mlp.shared_experts", n, rank, self.ranks) if experts.shared else 0
        # so many ranks have the same experts, each a part of their width
        shares = self.ranks * self.groups // self.ep
        each = experts.count // self.ep
        weights = self._chosen(layer, n, experts)
        for group in [self.group] if alone else range(self.groups):
            first, share = divmod(group * self.ranks + rank, shares)
            for number in range(first * each, (first + 1) * each):
                part = self._mlp(layer, f"mlp.experts.{number}", n, share, shares)
                out = out + weights[..., number : number + 1] * part
        return out

    def _mlp(self, layer: int, name: str, n: Tensor, rank: int, ranks: int) -> Tensor:
        config, of = self.config, self._of(layer, name)
        each = of("up_proj.weight").shape[0] // ranks
        columns = slice(rank * each, (rank + 1) * each)
        up = n @ of("up_proj.weight")[columns].T + of("up_proj.bias", config.mlp_bias)[columns]
        if config.gated_mlp:
            gate = n @ of("gate_proj.weight")[columns].T + of("gate_proj.bias", config.mlp_bias)[columns]
            up = gate * gate.sigmoid() * up
        else:
            up = up * up.sigmoid()
        return up @ of("down_proj.weight")[:, columns].T + of("down_proj.bias", config.mlp_bias) / ranks

    def _chosen(self, layer: int, n: Tensor, experts: Experts) -> Tensor:
        """Weight of every expert for every token, token by token: 0 for those that are not chosen."""
        of = self._of(layer, "mlp.gate")
        weights = []
        for token in n.flatten(0, 1):
            logits = of("weight") @ token
            score = logits.sigmoid() if experts.sigmoid else logits.softmax(-1)
            wanted = (score + of("e_score_correction_bias") if experts.biased_choice else score).tolist()
            size = experts.count // experts.groups
            groups = [wanted[at : at + size] for at in range(0, experts.count, size)]
            best = sorted(groups, key=lambda group: -sum(sorted(group)[-experts.group_best :]))[: experts.top_groups]
            chosen = sorted((value for group in best for value in group), reverse=True)[: experts.top_k]
            numbers = [wanted.index(value) for value in chosen]
            total = sum(score[number] for number in numbers) if experts.normalized else 1.0
            is_chosen = torch.tensor([number in numbers for number in range(experts.count)])
            weights.append(score / total * experts.scale * is_chosen)
        return torch.stack(weights).view(*n.shape[:-1], -1)

    def _of(self, layer: int, part: str) -> Callable[..., Tensor]:
        def find(name: str, there: bool = True) -> Tensor:
            if not there:
                weight = self.weights[f"model.layers.{layer}.{part}.{name.replace('bias', 'weight')}"]
                return weight.new_zeros(weight.shape[0])
            return self.weights[f"model.layers.{layer}.{part}.{name}"]

        return find

    def _rotated(self, x: Tensor) -> Tensor:
        """Two channels as one complex number, turned by the position's angle: j and j + K/2, or 2j and 2j + 1."""
        half = x.shape[-1] // 2
        angles = [[t * self._frequency(j, half) for j in range(half)] for t in range(x.shape[1])]
        amplitude = self.config.rope_scaling.amplitude if isinstance(self.config.rope_scaling, Yarn) else 1.0
        lengths = torch.full((len(angles), half), amplitude, dtype=x.dtype)
        turn = torch.polar(lengths, torch.tensor(angles, dtype=x.dtype))
        if self.config.latent and self.config.latent.interleaved:
            x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    def _frequency(self, channel: int, half: int) -> float:
        """Radians per position, stretched as Llama 3.1's or YaRN's are."""
        frequency = self.config.rope_theta ** (-channel / half)
        scaling = self.config.rope_scaling
        if scaling is None:
            return frequency
        if isinstance(scaling, Yarn):
            # the channels whose wavelengths fit so many times into the original context
            first, last = (
                half * math.log(scaling.original_positions / (turns * 2 * math.pi), self.config.rope_theta)
                for turns in (scaling.beta_fast, scaling.beta_slow)
            )
            first, last = max(math.floor(first), 0), min(math.ceil(last), 2 * half - 1)
            share = min(max((channel - first) / (last - first), 0), 1)
            return frequency * (1 - share) + frequency / scaling.factor * share
        wavelength = 2 * math.pi / frequency
        if wavelength < scaling.original_positions / scaling.high_freq_factor:
            return frequency
        if wavelength > scaling.original_positions / scaling.low_freq_factor:
            return frequency / scaling.factor
        smooth = (scaling.original_positions / wavelength - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        return (1 - smooth) * frequency / scaling.factor + smooth * frequency
