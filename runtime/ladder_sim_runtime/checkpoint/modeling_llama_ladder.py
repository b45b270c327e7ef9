"""Llama in other residual wirings for Hugging Face transformers, written next to the weights.

AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True) then runs the model in one process: forward passes,
gradients, generation, adapters. Ladder Residual, arXiv 2501.06589: each block of a ladder layer reads the residual
stream without the output of the block before it, which tensor parallelism would still be reducing. Other wirings say
which newest outputs each block does not read, and in which lane of the stream.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

# the lanes of the residual stream, and outputs that are not in it yet, oldest first, as they are added to each lane
Stream = tuple[Tensor, ...]
# what a rule says by default
_RULE = {"delay": 0, "lane": "x", "weight": 1, "reduce": "sum", "instead": "nothing", "percent": 100}


class Block(NamedTuple):
    """One block of a layer."""

    name: str
    """attention, mlp or fused."""
    joins: int
    """Oldest outputs that are added to the stream before it reads."""
    lane: int
    weights: tuple[Any, ...]
    """Factor of its output in each lane."""


class LlamaLadderConfig(LlamaConfig):
    """A Llama's config with its wiring.

    That is the numbers of layers that are ladder, or how many next to the LM head; or rules of layers by their numbers.
    """

    model_type = "llamaLadder"

    def __init__(
        self, ladder_layers: int | list[int] = 0, ladder_sim_wiring: Mapping[str, Any] | None = None, **fields: Any
    ) -> None:
        super().__init__(**fields)
        self.ladder_layers = ladder_layers
        if ladder_sim_wiring is not None:
            self.ladder_sim_wiring = dict(ladder_sim_wiring)

    def rules(self) -> list[dict[str, dict[str, Any]]]:
        """Return the rules of each layer's blocks, by their names."""
        count, ladder = self.num_hidden_layers, self.ladder_layers
        upper = list(range(count - ladder, count)) if isinstance(ladder, int) else ladder
        late = {"at": upper, "attention": {"delay": 1}, "mlp": {"delay": 1}}
        layers: list[dict[str, Any]] = [{} for _ in range(count)]
        for table in getattr(self, "ladder_sim_wiring", {"layers": [late]}).get("layers", []):
            if not isinstance(table.get("at"), list):
                raise ValueError(f"ladder_sim_wiring: at is {table.get('at')!r}: must be a list of layers' numbers")
            for layer in table["at"]:
                layers[layer] = {name: rule for name, rule in table.items() if name != "at"}
        names = [("fused",) if "fused" in layer else ("attention", "mlp") for layer in layers]
        return [
            {name: _RULE | layer.get(name, {}) for name in blocks} for layer, blocks in zip(layers, names, strict=True)
        ]

    def lanes(self) -> list[str]:
        """Return the names of the stream's lanes."""
        return list(dict.fromkeys(rule["lane"] for blocks in self.rules() for rule in blocks.values()))

    def blocks(self) -> list[list[Block]]:
        """Return the blocks of each layer."""
        lanes, number, joined = self.lanes(), 0, 0
        layers: list[list[Block]] = []
        for blocks in self.rules():
            layers.append([])
            for name, rule in blocks.items():
                if rule["reduce"] != "sum" or rule["percent"] < 100 or (rule["delay"] and rule["instead"] != "nothing"):
                    raise ValueError(
                        "ladder_sim_wiring: its ranks read their own parts, and here is one: "
                        "python -m ladder_sim_runtime complete --tp runs it"
                    )
                before, joined = joined, max(joined, number - rule["delay"])
                weight = rule["weight"]
                weights = tuple(weight.get(lane, 0) if isinstance(weight, Mapping) else weight for lane in lanes)
                layers[-1].append(Block(name, joined - before, lanes.index(rule["lane"]), weights))
                number += 1
        return layers


class LlamaLadderLayer(LlamaDecoderLayer):
    """Passes on the residual stream, and outputs that are not in it."""

    def __init__(self, config: LlamaLadderConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.blocks = config.blocks()[layer_idx]
        for block in self.blocks:
            if "learned" in block.weights:
                setattr(self, f"{block.name}_weight", nn.Parameter(torch.ones(len(block.weights))))

    def forward(self, hidden_states: Tensor | Stream, **kwargs: Any) -> Stream:  # type: ignore[override]
        lanes = len(self.blocks[0].weights)
        given = hidden_states if isinstance(hidden_states, tuple) else (hidden_states,) * lanes
        streams, waiting = given[:lanes], given[lanes:]
        for block in self.blocks:
            for _ in range(block.joins):
                streams, waiting = _joined(streams, waiting)
            output = self._output(block.name, streams[block.lane], **kwargs)
            waiting += tuple(self._weighted(block, output, lane) for lane in range(lanes))
        return (*streams, *waiting)

    def _output(self, name: str, x: Tensor, **kwargs: Any) -> Tensor:
        if name == "mlp":
            computed: Tensor = self.mlp(self.post_attention_layernorm(x))
            return computed
        n = self.input_layernorm(x)
        attended: Tensor = self.self_attn(hidden_states=n, **kwargs)[0]
        return attended + self.mlp(n) if name == "fused" else attended

    def _weighted(self, block: Block, output: Tensor, lane: int) -> Tensor:
        weight = block.weights[lane]
        if weight == "learned":
            weight = getattr(self, f"{block.name}_weight")[lane]
        elif weight == 1:
            return output
        weighted: Tensor = output * weight
        return weighted


def _joined(streams: Stream, waiting: Stream) -> tuple[Stream, Stream]:
    """Add the oldest output to all lanes."""
    lanes = len(streams)
    return tuple(x + output for x, output in zip(streams, waiting[:lanes], strict=True)), waiting[lanes:]


class _LastNorm(LlamaRMSNorm):
    """Reads all of the stream, the mean of its lanes."""

    lanes = 1

    def forward(self, hidden_states: Stream) -> Tensor:  # type: ignore[override]
        streams, waiting = hidden_states[: self.lanes], hidden_states[self.lanes :]
        while waiting:
            streams, waiting = _joined(streams, waiting)
        normalised: Tensor = super().forward(sum(streams[1:], streams[0]) / self.lanes)
        return normalised


class LlamaLadderModel(LlamaModel):
    """The decoder without its LM head."""

    config_class = LlamaLadderConfig

    def __init__(self, config: LlamaLadderConfig) -> None:
        super().__init__(config)
        for index in range(config.num_hidden_layers):
            self.layers[index] = LlamaLadderLayer(config, index)
        self.norm = _LastNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm.lanes = len(config.lanes())
        self._no_split_modules = [LlamaLadderLayer.__name__]
        self.post_init()


class LlamaLadderForCausalLM(LlamaForCausalLM):
    """The whole model."""

    config_class = LlamaLadderConfig

    def __init__(self, config: LlamaLadderConfig) -> None:
        super().__init__(config)
        self.model = LlamaLadderModel(config)
        self.post_init()
