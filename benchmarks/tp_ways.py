"""A small tensor-parallel Llama in five ways of plain PyTorch, each as it is usually written and rewired by hand.

Every way needs a process group.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate

LAYERS, HIDDEN, TOKENS, HEADS, VOCAB = 6, 1024, 64, 8, 1024

Block = Callable[[Tensor], Tensor]
"""From the residual to the output that is summed over the ranks."""
Reducer = Callable[[Tensor], Callable[[], Tensor]]
"""Sums an output over the ranks, or starts to; what it returns waits."""


class Way(NamedTuple):
    """Two programs of one model."""

    standard: Callable[[], Tensor]
    rewired: Callable[[int], Tensor]
    """With the `behind` of `forward`: 1 is standard, 2 is ladder."""


def forward(x_TD: Tensor, blocks: Sequence[Block], reduced: Reducer, behind: int = 1) -> Tensor:
    """A forward pass whose blocks read the residual with the outputs of all blocks but the last `behind` - 1."""
    pending: list[Callable[[], Tensor]] = []
    for block in blocks:
        if len(pending) == behind:
            x_TD = x_TD + pending.pop(0)()
        pending.append(reduced(block(x_TD)))
    for wait in pending:
        x_TD = x_TD + wait()
    return x_TD


def blocking() -> Way:
    x_TD, blocks = model()
    return Way(partial(forward, x_TD, blocks, waited), partial(forward, x_TD, blocks, started))


def asynchronous() -> Way:
    """As Megatron issues them."""
    x_TD, blocks = model()
    return Way(partial(forward, x_TD, blocks, started), partial(forward, x_TD, blocks, started))


def dtensor() -> Way:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def redistributed(y_TD: Tensor) -> Callable[[], Tensor]:
        whole_TD = DTensor.from_local(y_TD, mesh, [Partial()]).redistribute(placements=[Replicate()], async_op=True)
        return lambda: whole_TD.to_local() + 0.0

    x_TD, blocks = model()
    return Way(partial(forward, x_TD, blocks, redistributed), partial(forward, x_TD, blocks, redistributed))


def compiled() -> Way:
    """One graph; rewired, a graph for each block, because functional collectives of a graph wait at once."""
    x_TD, blocks = model()

    def summed(y_TD: Tensor) -> Callable[[], Tensor]:
        sum_TD = functional.all_reduce(y_TD, "sum", dist.group.WORLD)
        return lambda: sum_TD

    apart = [torch.compile(block, fullgraph=True) for block in blocks]
    whole = torch.compile(forward, fullgraph=True)
    return Way(partial(whole, x_TD, blocks, summed), partial(forward, x_TD, apart, started))


def transformers_plan() -> Way:
    """Hugging Face's `tp_plan="auto"`, whose modules call all-reduces."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaModel
    from transformers.distributed import DistributedConfig

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=VOCAB,
    )
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config.save_pretrained(folder)
        # save_pretrained writes weights on rank 0 alone
        save_file(LlamaModel(config).state_dict(), Path(folder, "model.safetensors"))
        llama: Any = LlamaModel.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto"))
    tokens_BT = torch.arange(TOKENS)[None]

    def standard() -> Tensor:
        return llama(tokens_BT, use_cache=False).last_hidden_state

    def rewired(behind: int) -> Tensor:
        x_BTD = llama.embed_tokens(tokens_BT)
        angles = llama.rotary_emb(x_BTD, torch.arange(TOKENS)[None])

        def attention(layer: Any, x_BTD: Tensor) -> Tensor:
            return layer.self_attn(layer.input_layernorm(x_BTD), position_embeddings=angles, attention_mask=None)[0]

        def mlp(layer: Any, x_BTD: Tensor) -> Tensor:
            return layer.mlp(layer.post_attention_layernorm(x_BTD))

        blocks = [partial(block, layer) for layer in llama.layers for block in (attention, mlp)]
        # what modules call only starts a sum
        works: list[Any] = []
        all_reduce = dist.all_reduce

        def start(y_BTD: Tensor, group: Any) -> None:
            works.append(all_reduce(y_BTD, group=group, async_op=True))

        with mock.patch.object(dist, "all_reduce", start):
            return llama.norm(forward(x_BTD, blocks, lambda y_BTD: arriving(works.pop(), y_BTD), behind))

    return Way(standard, rewired)


WAYS: dict[str, Callable[[], Way]] = {
    "blocking": blocking,
    "asynchronous": asynchronous,
    "DTensor": dtensor,
    "torch.compile": compiled,
    "tp_plan": transformers_plan,
}


def waited(y_TD: Tensor) -> Callable[[], Tensor]:
    dist.all_reduce(y_TD)
    return lambda: y_TD


def started(y_TD: Tensor) -> Callable[[], Tensor]:
    return arriving(dist.all_reduce(y_TD, async_op=True), y_TD)


def arriving(work: Any, y_TD: Tensor) -> Callable[[], Tensor]:
    def wait() -> Tensor:
        work.wait()
        return y_TD

    return wait


def model() -> tuple[Tensor, list[Block]]:
    """An input, and this rank's columns and rows of the blocks."""
    torch.manual_seed(0)
    x_TD = torch.randn(TOKENS, HIDDEN)
    torch.manual_seed(1 + dist.get_rank())
    ranks = dist.get_world_size()

    def shard(rows: int, columns: int) -> Tensor:
        return 0.02 * torch.randn(rows, columns)

    blocks: list[Block] = []
    for _ in range(LAYERS):
        blocks.append(partial(attention, shard(HIDDEN, 3 * HIDDEN // ranks), shard(HIDDEN // ranks, HIDDEN)))
        blocks.append(partial(mlp, shard(HIDDEN, 4 * HIDDEN // ranks), shard(4 * HIDDEN // ranks, HIDDEN)))
    return x_TD, blocks


def attention(qkv_DN: Tensor, out_ND: Tensor, x_TD: Tensor) -> Tensor:
    parts = (normed(x_TD) @ qkv_DN).chunk(3, -1)
    q, k, v = (part.view(1, TOKENS, HEADS // dist.get_world_size(), -1).transpose(1, 2) for part in parts)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return mixed.transpose(1, 2).reshape(TOKENS, -1) @ out_ND


def mlp(up_DN: Tensor, down_ND: Tensor, x_TD: Tensor) -> Tensor:
    return torch.nn.functional.silu(normed(x_TD) @ up_DN) @ down_ND


def normed(x_TD: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x_TD, (HIDDEN,))
