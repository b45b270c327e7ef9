"""The layers of any decoder that transformers knows: built and run on torch's meta device, which holds no data.

A forward pass of tensors without data shows which linear layers each block runs and on what they read, what its
attention is given, how many experts a token takes, and what the cache holds afterwards: of two passes of different
lengths, what grows with the tokens and what does not. Weights are not read, nothing is downloaded, and code that comes
with a checkpoint is never run.

Hooks record the pass, `_Layer` is the record of a layer, and the functions below make of it the kinds of
`ladder_sim.specs.layers`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ladder_sim.errors import SpecError
from ladder_sim.specs.hf_reader import TEXT_CONFIGS
from ladder_sim.specs.layer_data import LAYER_DATA, described
from ladder_sim.specs.layers import Attend, BlockKind, Dense, Index, Linear, Mixer, Mla, Moe, State

# lengths of the two passes, tokens: multiples of what one compressed entry of a cache stands for in known models
_LENGTHS = (256, 512)
# types that transformers has under another name: of the decoder alone, or of equal blocks
_ALIASES = {
    "kimi_k2": "deepseek_v3",
    "mimo": "qwen2",
    "mimo_v2": "mimo_v2_flash",
    "minimax_m3": "minimax_m3_vl_text",
}
# layers that predict further tokens
_FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_WAY_OUT = 'a newer transformers may; sizes of a decoder of Llama\'s kind can be given as "model_type": "llama"'
# what a config says of its file, not of its shape
_NOT_SHAPE = ("auto_map", "quantization_config", "compression_config")


def trace(config: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the layers of a model as `ladder_sim.specs.layer_data` reads them.

    Parameters
    ----------
    config
        The parsed ``config.json`` of a decoder, or of a model around one.
    source
        The file it comes from; errors name it.

    Raises
    ------
    SpecError
        transformers does not know the type, or the model cannot be built or run.
    """
    transformers.logging.set_verbosity_error()
    with _quiet_default_dtype():
        try:
            own = _configuration(config)
            model = _built(own)
            layers, norms = _recorded(model, own)
            vocab, hidden = model.get_input_embeddings().weight.shape
            blocks = [(number, block) for number, layer in enumerate(layers) for block in _blocks(layer, hidden)]
        except SpecError:
            raise
        # whatever a model's code raises
        except Exception as fault:
            raise SpecError(
                f"{source}: transformers {transformers.__version__} cannot build it: {type(fault).__name__}: {fault}",
                hint=_WAY_OUT,
            ) from fault
    text = own.get_text_config(decoder=True)
    said = next((config[key] for key in TEXT_CONFIGS if config.get(key)), config)
    for key, built in (("hidden_size", hidden), ("num_hidden_layers", len(layers))):
        if said.get(key, built) != built:
            raise SpecError(f"{source}: {key} is {said[key]}, and transformers builds {built}", hint=_WAY_OUT)
    return {
        "model_type": LAYER_DATA,
        "hidden_size": hidden,
        "vocab_size": vocab,
        "max_position_embeddings": getattr(text, "max_position_embeddings", None) or _LENGTHS[-1],
        "tie_word_embeddings": bool(text.tie_word_embeddings),
        "block_norms": "both" if norms >= 2 * len(blocks) else "before",
        "parallel_blocks": any(layer.parallel for layer in layers)
        or bool(getattr(text, "use_parallel_residual", False) or getattr(text, "parallel_attn", False)),
        "family": str(config.get("model_type", text.model_type)),
        "source": f"traced from transformers {transformers.__version__}: {type(model).__name__}"
        + _left_out(config, said),
        **described(blocks),
    }


def _left_out(*configs: Mapping[str, Any]) -> str:
    """Return, in words, what a checkpoint has and the trace has not: layers that predict further tokens."""
    count = max((config.get(key) or 0 for config in configs for key in _FURTHER), default=0)
    plural = "s" if count > 1 else ""
    return f", without {count} layer{plural} that predict{'' if plural else 's'} further tokens" if count else ""


@contextlib.contextmanager
def _quiet_default_dtype() -> Iterator[None]:
    """Make tensors of 16 bits, which kernels for experts demand, and none that needs a gradient."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)


def _configuration(config: Mapping[str, Any]) -> Any:
    """Return transformers' own configuration of the model, or of its decoder if the outer type is not known."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    inner = next((config[key] for key in TEXT_CONFIGS if config.get(key)), {})
    # a type, and that of the class that the file names
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    by_class = {name: kind for kind, name in causal.items() if isinstance(name, str)}
    for fields in (config, inner):
        said = fields.get("model_type", "")
        classes = [by_class.get(name, "") for name in fields.get("architectures") or ()]
        for kind in (said, _ALIASES.get(said, ""), *classes):
            if kind in known:
                given = {key: value for key, value in fields.items() if key not in (*_NOT_SHAPE, "model_type")}
                given = _with_known_activation(given)
                if "text_config" in known[kind].sub_configs and not any(key in given for key in TEXT_CONFIGS):
                    given = {"text_config": given}
                return known[kind].from_dict(given)
    kinds = " with ".join(str(each["model_type"]) for each in (config, inner) if each.get("model_type"))
    raise SpecError(
        f"model_type is {kinds or 'missing'}: neither ladder-sim nor transformers {transformers.__version__} has it",
        hint=_WAY_OUT,
    )


def _with_known_activation(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with another activation for one that transformers has not: it changes no shape."""
    known = transformers.activations.ACT2FN
    return {
        key: "silu" if key.endswith("hidden_act") and value not in known else value for key, value in fields.items()
    }


def _built(config: Any) -> nn.Module:
    """Return the model's decoder on the meta device, with attention that records what it is given."""
    transformers.AttentionInterface.register("ladder_sim", _attention)
    transformers.AttentionMaskInterface.register("ladder_sim", transformers.masking_utils.eager_mask)
    text = config.get_text_config(decoder=True)
    mapped = transformers.models.auto.modeling_auto.MODEL_MAPPING
    chosen = text if type(text) in mapped else config
    for each in (chosen, text):
        each._attn_implementation = "ladder_sim"
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(chosen)
    return model if chosen is text else model.get_decoder()  # type: ignore[no-any-return]


@dataclass
class _Product:
    """A linear layer as it ran."""

    name: str
    n: int
    k: int
    read: Tensor
    index: nn.Module | None
    """The index that it is part of."""


@dataclass
class _Attention:
    """Attention as it was called."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    entries: int
    """Entries of the cache."""
    window: int


@dataclass
class _Experts:
    """Routed experts as they were called."""

    hidden: int
    top_k: int
    module: nn.Module


@dataclass
class _Block:
    """A part of a layer as it ran."""

    module: nn.Module
    mixes: bool
    """It was given the cache."""
    events: list[_Product | _Attention | _Experts] = field(default_factory=list)
    norms: list[tuple[int, int]] = field(default_factory=list)
    """Width and weights of each norm in it, up to attention."""

    @property
    def products(self) -> list[_Product]:
        return [event for event in self.events if isinstance(event, _Product)]

    def first(self, kind: type) -> Any:
        """Return the first event of a kind, or None."""
        return next((event for event in self.events if isinstance(event, kind)), None)


@dataclass
class _Layer:
    """A layer as it ran, and what the cache holds of it."""

    blocks: list[_Block]
    window: int
    shapes: dict[str, Tensor]
    """Tensors of the cache by where they are in it."""

    @property
    def parallel(self) -> bool:
        """Whether its parts read the same tensor."""
        reads = [(block.mixes, block.products[0].read) for block in self.blocks if block.products]
        return any(one is other for mixes, one in reads for others, other in reads if mixes and not others)


# where a pass is recorded
_events: list[Any] = []
_norms: list[tuple[int, int]] = []


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any) -> Any:
    """Record attention, whose output has the width of the values."""
    _events.append(
        _Attention(
            heads=query.shape[1],
            kv_heads=key.shape[1],
            key_dim=query.shape[-1],
            value_dim=0 if value is key else value.shape[-1],
            entries=key.shape[2],
            window=options.get("sliding_window") or 0,
        )
    )
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def _recorded(model: nn.Module, config: Any) -> tuple[list[_Layer], int]:
    """Run the model and return its layers as they ran, and the number of norms next to their blocks."""
    text = config.get_text_config(decoder=True)
    stacks = (each for each in model.modules() if isinstance(each, nn.ModuleList))
    stack = next(each for each in stacks if len(each) == text.num_hidden_layers)
    layers: list[list[_Block]] = [[] for _ in stack]
    norms = 0
    for number, layer in enumerate(stack):
        indexes = [each for each in layer.modules() if type(each).__name__.endswith("Indexer")]
        of_index = {id(part): each for each in indexes for part in each.modules()}
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(_recording_linear(name, of_index.get(id(module))))
            elif _expert_weights(module):
                # run in their own ways, which need data
                module.forward = _recording_experts(module, getattr(text, "num_experts_per_tok", 1))
            elif type(module).__name__.endswith("Norm") and id(module) not in of_index:
                module.register_forward_pre_hook(_record_norm)
        for child in layer.children():
            norms += type(child).__name__.endswith("Norm")
            child.register_forward_pre_hook(_entering(layers[number]), with_kwargs=True)
            child.register_forward_hook(_leaving(layers[number]))
    for length in _LENGTHS:
        for blocks in layers:
            blocks.clear()
        output = model(input_ids=torch.zeros(1, length, dtype=torch.long, device="meta"), use_cache=True)
    cache = getattr(output, "past_key_values", None) or getattr(output, "cache_params", None)
    kept = list(cache.layers) if cache is not None else []
    kept += [None] * (len(layers) - len(kept))
    return [
        _Layer(blocks, getattr(each, "sliding_window", None) or 0, dict(_tensors(vars(each), "")) if each else {})
        for blocks, each in zip(layers, kept, strict=True)
    ], norms


def _entering(blocks: list[_Block]) -> Any:
    def hook(module: nn.Module, args: Any, options: Any) -> None:
        _events.clear()
        _norms.clear()
        given = (*args, *options.values())
        blocks.append(_Block(module, any(isinstance(each, transformers.Cache) for each in given)))

    return hook


def _leaving(blocks: list[_Block]) -> Any:
    def hook(*_: Any) -> None:
        blocks[-1].events, blocks[-1].norms = list(_events), list(_norms)

    return hook


def _recording_linear(name: str, index: nn.Module | None) -> Any:
    def hook(module: nn.Linear, args: tuple[Tensor, ...]) -> None:
        _events.append(_Product(name, module.out_features, module.in_features, args[0], index))

    return hook


def _record_norm(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    if not any(isinstance(event, _Attention) for event in _events):
        _norms.append((args[0].numel() // _LENGTHS[-1], sum(each.numel() for each in module.parameters())))


def _expert_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of routed experts, a matrix for each; empty for other modules."""
    named = "Expert" in type(module).__name__
    return [each for each in module.parameters(recurse=False) if each.dim() == 3] if named else []


def _recording_experts(module: nn.Module, top_k: int) -> Any:
    def forward(hidden: Tensor, *args: Any, **options: Any) -> Tensor:
        # tokens by chosen experts, of whole numbers
        chosen = next((each for each in (*args, *options.values()) if not each.is_floating_point()), None)
        # others are given every token for every expert
        count = top_k if chosen is None else chosen.shape[-1]
        _events.append(_Experts(hidden.shape[-1], count, module))
        return torch.empty_like(hidden)

    return forward


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor) and value.dim() > 1:
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(each, f"{path}.{key}".lstrip("."))


def _blocks(layer: _Layer, hidden: int) -> Iterator[BlockKind]:
    """Yield the kinds of a layer's blocks: what mixes tokens, and what does not; parts side by side are one."""
    used = [block for block in layer.blocks if block.events]
    mixers = [block for block in used if block.mixes]
    others = [block for block in used if not block.mixes and any(_has_width(event) for event in block.events)]
    if mixers:
        yield _latent(mixers, layer, hidden) or _mixer(mixers, layer, hidden)
    if others:
        yield _feed_forward([event for block in others for event in block.events], hidden)


def _has_width(event: Any) -> bool:
    """Whether it is more than a gate."""
    return isinstance(event, _Experts) or event.n > 1


def _index(products: list[_Product]) -> Index | None:
    """Return the index that some linear layers are part of, by the fields of its module."""
    module: Any = next((product.index for product in products if product.index), None)
    if module is None:
        return None
    blocks = getattr(module, "topk_blocks", 0) * getattr(module, "block_size", 0)
    return Index(
        heads=getattr(module, "n_heads", None) or module.num_heads,
        dim=module.head_dim,
        top_k=getattr(module, "index_topk", None) or blocks,
    )


def _latent(mixers: list[_Block], layer: _Layer, hidden: int) -> Mla | None:
    """Return latent attention, if the cache holds one vector for all heads and less than they read."""
    call: _Attention | None = mixers[0].first(_Attention)
    keys, values = layer.shapes.get("keys"), layer.shapes.get("values")
    if len(mixers) > 1 or call is None or keys is None or values is None or keys.shape[1] == call.kv_heads:
        return None
    rope = values.shape[-1]
    products = mixers[0].products
    queries = next(each for each in products if each.n == call.heads * call.key_dim)
    return Mla(
        hidden=hidden,
        heads=call.heads,
        kv_lora_rank=keys.shape[-1],
        q_lora_rank=0 if queries.k == hidden else queries.k,
        nope_head_dim=call.key_dim - rope,
        rope_head_dim=rope,
        value_head_dim=call.value_dim,
        index=_index(products),
    )


def _mixer(mixers: list[_Block], layer: _Layer, hidden: int) -> Mixer:
    cores: list[Attend | State] = []
    before: list[_Product] = []
    outputs: list[_Product] = []
    norms: list[tuple[int, int]] = []
    for block in mixers:
        call: _Attention | None = block.first(_Attention)
        ends = block.events.index(call) if call else len(block.events) - 1
        before += [event for event in block.events[:ends] if isinstance(event, _Product)]
        outputs += [event for event in block.events[ends:] if isinstance(event, _Product)]
        if call is None:
            cores.append(_state(layer))
        else:
            cores += _attends(call, layer, _index(block.products))
            norms += block.norms
    attends = [core for core in cores if isinstance(core, Attend)]
    inputs = _inputs(before, attends[0] if attends else None, hidden)
    columns = sum(linear.n for group in inputs for linear in group if linear.sharding == "columns")
    core = attends[0] if attends else None
    read = core.heads * core.key_dim + core.kv_heads * (core.key_dim + core.value_dim) if core else columns
    first = Linear(n=outputs[0].n, k=outputs[0].k, sharding="rows" if outputs[0].n == hidden else "columns")
    return Mixer(
        hidden=hidden,
        inputs=inputs,
        cores=tuple(cores),
        outputs=(first, *(Linear(n=each.n, k=each.k, sharding="rows") for each in outputs[1:])),
        norms=tuple(width for width, _ in norms),
        joint_norms=core is not None and (core.heads * core.key_dim,) * 2 in norms,
        gates=first.k if len(cores) == 1 and columns > read else 0,
        parameters=sum(each.numel() for block in mixers for each in block.module.parameters()),
    )


def _attends(call: _Attention, layer: _Layer, index: Index | None) -> Iterator[Attend]:
    """Yield attention to the cache; entries that stand for several tokens come behind a window of single ones."""
    window = call.window or layer.window
    own = Attend(
        heads=call.heads,
        kv_heads=call.kv_heads,
        key_dim=call.key_dim,
        value_dim=call.value_dim,
        window=window,
    )
    compressed = call.entries - _LENGTHS[-1]
    if compressed <= 0:
        yield replace(own, index=index)
        return
    yield own
    yield replace(own, window=0, every=_LENGTHS[-1] // compressed, index=index)


def _state(layer: _Layer) -> State:
    states = {path: each for path, each in layer.shapes.items() if path.startswith(("conv_states", "recurrent_states"))}
    if not states:
        raise ValueError("its cache does not show what a layer without attention keeps")
    largest = max(states.values(), key=Tensor.numel)
    return State(
        heads=largest.shape[1],
        elements=largest.numel(),
        size_bytes=sum(each.numel() * each.element_size() for each in states.values()),
    )


def _inputs(products: list[_Product], core: Attend | None, hidden: int) -> tuple[tuple[Linear, ...], ...]:
    """Return linear layers in front of attention or states, those that read the same tensor together.

    What a further linear layer reads is small where it compresses, and every rank has it; else each rank has its part
    of it, and sums up what it makes of that.
    """
    sharding = dict.fromkeys(range(len(products)), "columns")
    sharding |= {number: "none" for number, each in enumerate(products) if each.index}
    for number, product in enumerate(products):
        if product.k == hidden or product.index:
            continue
        earlier = [each for each in range(number) if products[each].n >= product.k and not products[each].index]
        feeding = min(earlier, key=lambda each: products[each].n, default=None)
        if feeding is not None and products[feeding].n < products[feeding].k:
            sharding[feeding] = "none"
        else:
            sharding[number] = "rows"
    groups: dict[tuple[int, str, int], list[Linear]] = {}
    for number, product in enumerate(products):
        key = id(product.read), sharding[number], product.k
        own: Any = {"k": product.k, "sharding": sharding[number]}
        groups.setdefault(key, []).extend(Linear(n=n, heads=heads, **own) for n, heads in _parts(product, core))
    # what reads the residual comes first
    return tuple(map(tuple, sorted(groups.values(), key=lambda group: group[0].k != hidden)))


def _parts(product: _Product, core: Attend | None) -> list[tuple[int, int]]:
    """Return the outputs of a linear layer that key/value heads have, and the others, each with its heads."""
    if core is None or product.index:
        return [(product.n, 0)]
    queries, keys, values = (
        core.heads * core.key_dim,
        core.kv_heads * core.key_dim,
        core.kv_heads * (core.value_dim or core.key_dim),
    )
    if product.n in (keys, values) and core.kv_heads != core.heads:
        return [(product.n, core.kv_heads)]
    if product.n == queries + keys + values:
        return [(queries, core.heads), (keys + values, core.kv_heads)]
    return [(product.n, 0)]


def _feed_forward(events: list[Any], hidden: int) -> Dense | Moe:
    experts: _Experts | None = next((event for event in events if isinstance(event, _Experts)), None)
    products = [event for event in events if isinstance(event, _Product) and event.n > 1]
    if experts is None:
        mlp = _mlp(products, hidden)
        if mlp is None:
            raise ValueError("a block is neither attention nor an MLP")
        return mlp
    weights = _expert_weights(experts.module)
    count = weights[0].shape[0]
    sizes = sorted(each.numel() // count for each in weights)
    width = sizes[0] // experts.hidden
    around = {(experts.hidden, hidden), (hidden, experts.hidden)} if experts.hidden != hidden else set()
    inner = [each for each in products if each.n != count and (each.n, each.k) not in around]
    return Moe(
        expert=Dense(
            hidden=experts.hidden,
            width=width,
            gated=sum(sizes) == 3 * sizes[0],
            bias=any(each.dim() == 2 for each in experts.module.parameters(recurse=False)),
        ),
        experts=count,
        experts_per_token=experts.top_k,
        shared=_mlp(inner, hidden),
        hidden=hidden if around else 0,
    )


def _mlp(products: list[_Product], hidden: int) -> Dense | None:
    """Return the MLPs that linear layers make up, as one; None if there are none."""
    downs = [each for each in products if each.n == hidden and each.k != hidden] or products[-1:]
    width = sum(each.k for each in downs)
    ups = sum(each.n for each in products if each not in downs and each.k == hidden)
    return Dense(hidden=hidden, width=width, gated=ups >= 2 * width) if width and ups else None
