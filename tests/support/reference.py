"""Every residual wiring, written straight from its equation: plain tensors, one process, nothing asynchronous.

Each rank's partial result is the whole computation over that rank's heads, MLP columns and experts; the sum over ranks
is a sum.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ladder_sim.hf.config import Yarn
from ladder_sim_runtime.checkpoint.tensors import tensor_shapes
from ladder_sim_runtime.checkpoint.weights import random_weights
from ladder_sim_runtime.config import ModelConfig

Weights = Mapping[str, Tensor]


def full_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Random weights that are not split, in double precision."""
    source = random_weights(seed=1)
    return {name: source(name, shape)[(slice(None),)].double() for name, shape in tensor_shapes(config).items()}


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
    head = weights["model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"]
    return [model.norm(x, "model.norm.weight") @ head.T for x in model.last(embedded, variant)]


class _Outputs(NamedTuple):
    """Of the blocks so far, rank by rank where it says so."""

    sums: list[Tensor]
    """Over the ranks."""
    own: list[list[Tensor]]
    """What each rank has of them."""
    shared: list[list[Tensor | int]]
    """What shared experts put out, if only other groups of ranks have the rest; 0: nothing."""


# from the number of a block, the outputs before it, and a rank, to what that block adds to the embedding
Read = Callable[[int, _Outputs, int], Tensor | int]


class _Equations:
    def __init__(self, config: ModelConfig, weights: Weights, ranks: int, ep: int, group: int, groups: int) -> None:
        self.config, self.weights, self.ranks, self.ep = config, weights, ranks, ep
        self.group, self.groups = group, groups

    def last(self, x: Tensor, variant: str) -> list[Tensor]:
        """What each rank's LM head reads: x and all sums, if nothing else is said."""
        layers = self.config.layers
        name = variant.removeprefix("hybrid-")
        family, numbers = name.rstrip("0123456789:"), [int(number) for number in re.findall(r"\d+", name)]
        # block from which on there is anything but standard
        first = 2 * (layers - numbers.pop()) if name != variant or family == "drop" else 0
        number = numbers[0] if numbers else 1

        def joined(i: int) -> int:
            """Outputs of which block i reads the sums: none is read by one block and not by the next."""
            return i if i < first else max(i - number, first - 1, 0)

        def standard(i: int, to: _Outputs, rank: int) -> Tensor | int:
            return sum(to.sums[:i])

        def ladder(i: int, to: _Outputs, rank: int) -> Tensor | int:
            return sum(to.sums[: joined(i)])

        def delayed(i: int, to: _Outputs, rank: int) -> Tensor | int:
            return sum(to.sums[: joined(i)]) + sum(own[rank] for own in to.own[joined(i) : i])

        def drop(i: int, to: _Outputs, rank: int) -> Tensor | int:
            return sum(to.sums[: i - 1]) + to.own[i - 1][rank] if i >= first and i % 2 else sum(to.sums[:i])

        def partial(i: int, to: _Outputs, rank: int) -> Tensor | int:
            own = sum(own[rank] for own in to.own[first:i])
            return sum(to.sums[:first]) + self.channels(number) * sum(to.sums[first:i]) + self.channels(-number) * own

        def farskip(i: int, to: _Outputs, rank: int) -> Tensor | int:
            return sum(to.sums[: joined(i)]) + sum(part[rank] for part in to.shared[joined(i) : i])

        if family == "parallel":
            return [self.parallel(self.together(x, standard, first), first)] * self.ranks
        if family in ("desync", "track", "upper-bound"):
            every = {"desync": number, "track": 2 * number, "upper-bound": None}[family]
            return self.apart([self.together(x, standard, first)] * self.ranks, first, every)
        if family == "partial" and self.ranks > 1:
            to = self.outputs(x, partial, 2 * layers)
            share = self.channels(number) + self.channels(-number) / self.ranks
            return [x + sum(to.sums[:first]) + share * sum(to.sums[first:])] * self.ranks
        reads = {"standard": standard, "partial": standard, "ladder": ladder, "delayed": delayed, "drop": drop}
        reads |= {"farskip": farskip, "farskip:own": delayed}
        return [self.together(x, reads[family], 2 * layers)] * self.ranks

    def channels(self, percent: int) -> Tensor:
        """1 in the first P percent of the channels, a multiple of 8, 0 in the others; below 0, the other way round."""
        first = math.ceil(self.config.hidden * abs(percent) / 100 / 8) * 8
        ones = (torch.arange(self.config.hidden) < first).double()
        return ones if percent > 0 else 1 - ones

    def together(self, x: Tensor, read: Read, blocks: int) -> Tensor:
        """The residual after so many blocks, with all of their sums."""
        return x + sum(self.outputs(x, read, blocks).sums)

    def outputs(self, x: Tensor, read: Read, blocks: int) -> _Outputs:
        """What so many blocks put out."""
        to = _Outputs([], [], [])
        for i in range(blocks):
            inputs = [x + read(i, to, rank) for rank in range(self.ranks)]
            block = self.attention if i % 2 == 0 else self.mlp
            own = [block(i // 2, n, rank) for rank, n in enumerate(inputs)]
            to.sums.append(self.behind(i, sum(own)))
            # other groups have a part of what a rank of one has not
            exchanges = i % 2 == 1 and self.ranks == 1 and self.groups > 1
            to.own.append([self.mlp(i // 2, inputs[0], 0, alone=True)] if exchanges else own)
            to.shared.append([self.shared(i // 2, inputs[0])] if exchanges else [0] * self.ranks)
        return to

    def parallel(self, x: Tensor, first: int) -> Tensor:
        """``x + attention(n(x)) + mlp(n(x))``, one norm."""
        for layer in range(first // 2, self.config.layers):
            shared = f"model.layers.{layer}.input_layernorm.weight"
            x = x + sum(
                self.attention(layer, x, rank) + self.mlp(layer, x, rank, norm=shared) for rank in range(self.ranks)
            )
        return x

    def apart(self, x: list[Tensor], first: int, every: int | None) -> list[Tensor]:
        """Each rank's own residual; after every N-th block and the last they become ``sum(h + x / ranks)``."""
        blocks = 2 * self.config.layers
        for i in range(first, blocks):
            reduces = every is not None and ((i - first + 1) % every == 0 or i == blocks - 1)
            outputs = [
                self.attention(i // 2, x[rank], rank)
                if i % 2 == 0
                else self.mlp(i // 2, x[rank], rank, alone=not reduces)
                for rank in range(self.ranks)
            ]
            outputs = [self.behind(i, output) for output in outputs]
            if reduces:
                x = [sum(outputs) + sum(x) / self.ranks] * self.ranks
            else:
                x = [own + output for own, output in zip(x, outputs, strict=True)]
        return x

    def before(self, x: Tensor, name: str) -> Tensor:
        """What a block computes with."""
        return x if self.config.norms_behind else self.norm(x, name)

    def behind(self, i: int, x: Tensor) -> Tensor:
        """What a sum of block i adds."""
        name = "post_feedforward" if i % 2 else "post_attention"
        return self.norm(x, f"model.layers.{i // 2}.{name}_layernorm.weight") if self.config.norms_behind else x

    def norm(self, x: Tensor, name: str, eps: float | None = None) -> Tensor:
        return x / self._root(x, eps) * self.weights[name]

    def _root(self, x: Tensor, eps: float | None = None) -> Tensor:
        return (x.square().mean(-1, keepdim=True) + (eps or self.config.norm_eps)).sqrt()

    def attention(self, layer: int, x: Tensor, rank: int) -> Tensor:
        config, of = self.config, self._of(layer, "self_attn")
        n = self.before(x, f"model.layers.{layer}.input_layernorm.weight")
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
        if config.qk_norm == "all":
            q, k = (
                x / self._root(n @ of(f"{name}_proj.weight").T) * of(f"{name}_norm.weight")[held]
                for x, name, held in ((q, "q", rows), (k, "k", kv_rows))
            )
        elif config.qk_norm == "heads":
            where = f"model.layers.{layer}.self_attn"
            q, k = self.norm(q, f"{where}.q_norm.weight"), self.norm(k, f"{where}.k_norm.weight")
        return self._rotated(q), self._rotated(k), v

    def _latent_head(self, layer: int, n: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same of latent attention."""
        config, of, where = self.config, self._of(layer, "self_attn"), f"model.layers.{layer}.self_attn"
        width, plain = config.head_dim, config.nope_head_dim
        source, name = n, "q_proj"
        if config.q_lora_rank:
            queries = n @ of("q_a_proj.weight").T + of("q_a_proj.bias", config.qkv_bias)
            source, name = self.norm(queries, f"{where}.q_a_layernorm.weight", 1e-6), "q_b_proj"
        q = source @ of(f"{name}.weight")[head * width : (head + 1) * width].T
        c = n @ of("kv_a_proj_with_mqa.weight").T + of("kv_a_proj_with_mqa.bias", config.qkv_bias)
        shared = self._rotated(c[..., config.kv_lora_rank :])
        c = self.norm(c[..., : config.kv_lora_rank], f"{where}.kv_a_layernorm.weight", 1e-6)
        made = plain + config.value_head_dim
        kv = c @ of("kv_b_proj.weight")[head * made : (head + 1) * made].T
        q = torch.cat((q[..., :plain], self._rotated(q[..., plain:])), -1)
        return q, torch.cat((kv[..., :plain], shared), -1), kv[..., plain:]

    def shared(self, layer: int, x: Tensor) -> Tensor | int:
        """What the shared experts of a layer put out, if it has routed ones, on a rank that has all of them."""
        if not self.config.has_experts(layer) or not self.config.shared_intermediate:
            return 0
        n = self.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
        return self._mlp(layer, "mlp.shared_experts", n, 0, 1)

    def mlp(self, layer: int, x: Tensor, rank: int, norm: str = "", *, alone: bool = False) -> Tensor:
        """Of a rank, with its experts and those of the ranks at its place in other groups; `alone` without these."""
        n = self.before(x, norm or f"model.layers.{layer}.post_attention_layernorm.weight")
        if not self.config.has_experts(layer):
            return self._mlp(layer, "mlp", n, rank, self.ranks)
        out = self._mlp(layer, "mlp.shared_experts", n, rank, self.ranks) if self.config.shared_intermediate else 0
        # so many ranks have the same experts, each a part of their width
        shares = self.ranks * self.groups // self.ep
        each = self.config.experts // self.ep
        weights = self._chosen(layer, n)
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

    def _chosen(self, layer: int, n: Tensor) -> Tensor:
        """Weight of every expert for every token, token by token: 0 for those that are not chosen."""
        of, routing, count = self._of(layer, "mlp.gate"), self.config.routing, self.config.experts
        weights = []
        for token in n.flatten(0, 1):
            logits = of("weight") @ token
            score = logits.sigmoid() if routing.sigmoid else logits.softmax(-1)
            wanted = (score + of("e_score_correction_bias") if routing.biased_choice else score).tolist()
            size = count // routing.groups
            groups = [wanted[at : at + size] for at in range(0, count, size)]
            best = sorted(groups, key=lambda group: -sum(sorted(group)[-routing.group_best :]))[: routing.top_groups]
            chosen = sorted((value for group in best for value in group), reverse=True)[: self.config.experts_per_token]
            numbers = [wanted.index(value) for value in chosen]
            total = sum(score[number] for number in numbers) if routing.normalized else 1.0
            is_chosen = torch.tensor([number in numbers for number in range(count)])
            weights.append(score / total * routing.scale * is_chosen)
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
        if self.config.latent and self.config.rope_interleaved:
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
