"""The layers of any decoder that transformers knows: built and run on torch's meta device, which holds no data.

A forward pass of tensors without data shows which linear layers each block runs and on what they read, what its
attention is given, how many experts a token takes, and what the cache holds afterwards. Weights are not read, nothing
is downloaded, and code that comes with a checkpoint is never run.

`_Recorder` records the pass, and the functions behind it make of each layer's record the kinds of
`ladder_sim.hf.mixer`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
import transformers
from torch import Tensor, nn

from ladder_sim.errors import SpecError
from ladder_sim.hf.attention import Index, Mla
from ladder_sim.hf.feed_forward import Dense, Moe
from ladder_sim.hf.fields import DECODERS, MAXIMA, QUANTIZATION, Fields
from ladder_sim.hf.listed import LAYER_DATA, described
from ladder_sim.hf.mixer import Attend, BlockKind, Linear, Mixer, Rule, State
from ladder_sim.hf.types import TRANSFORMERS_NAMES

# tokens of the pass: a multiple of what one compressed entry of a cache stands for in known models
_TOKENS = 128
# of attention that is recorded
_NAME = "ladder_sim"
# rules of recurrent states, by the ends of their classes' names
_RULES: Mapping[str, Rule] = {"GatedDeltaNet": "gated-delta", "DeltaAttention": "kda", "Mamba2Mixer": "mamba2"}
_WAY_OUT = 'a newer transformers may; sizes of a decoder of Llama\'s kind can be given as "model_type": "llama"'
# what a config says of its file, not of its shape
_NOT_SHAPE = ("auto_map", *QUANTIZATION)


def trace(config: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the layers of a model as `ladder_sim.hf.listed` reads them.

    The parsed config is that of a decoder, or of a model around one; errors name its file, `source`. Raises SpecError
    if transformers does not know the type, or the model cannot be built or run.
    """
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    with _quiet_default_dtype():
        try:
            own = _configuration(config, source)
            text = own.get_text_config(decoder=True)
            record = _Recorder(text)
            model: Any = _built(own, text)
            record.run(model)
            vocab, hidden = model.get_input_embeddings().weight.shape
            blocks = [(number, block) for number, layer in enumerate(record.layers) for block in _blocks(layer, hidden)]
            said = Fields(config, source).text
            latent = Fields(said, source).size("routed_expert_hidden_size", MAXIMA["hidden"], default=0, minimum=0)
            blocks = [(number, _with_latent_experts(block, latent)) for number, block in blocks]
        except SpecError:
            raise
        # whatever a model's code raises
        except Exception as fault:
            raise SpecError(
                f"{source}: transformers {transformers.__version__} cannot build it: {type(fault).__name__}: {fault}",
                hint=_WAY_OUT,
            ) from fault
    for key, built in (("hidden_size", hidden), ("num_hidden_layers", len(record.layers))):
        if said.get(key, built) != built:
            raise SpecError(f"{source}: {key} is {said[key]}, and transformers builds {built}", hint=_WAY_OUT)
    return {
        "model_type": LAYER_DATA,
        "hidden_size": hidden,
        "vocab_size": vocab,
        "max_position_embeddings": getattr(text, "max_position_embeddings", None) or _TOKENS,
        "tie_word_embeddings": bool(text.tie_word_embeddings),
        "block_norms": "both" if record.norms >= 2 * len(blocks) else "before",
        "parallel_blocks": any(layer.parallel for layer in record.layers)
        or bool(getattr(text, "use_parallel_residual", False) or getattr(text, "parallel_attn", False)),
        "family": str(config.get("model_type", text.model_type)),
        "source": f"traced from transformers {transformers.__version__}: {type(model).__name__}"
        + _left_out(max(Fields(each, source).further_layers() for each in (config, said))),
        **described(blocks),
    }


def _left_out(count: int) -> str:
    """Return, in words, what a checkpoint has and the trace has not: layers that predict further tokens."""
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


def _configuration(config: Mapping[str, Any], source: str) -> Any:
    """Return transformers' own configuration of the model, or of its decoder if the outer type is not known."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    outer = Fields(config, source)
    inner: Mapping[str, Any] = outer.text if outer.decoder_key else {}

    # a type, and that of the class that the file names
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    by_class = {name: kind for kind, name in causal.items() if isinstance(name, str)}
    for fields in (config, inner):
        said = fields.get("model_type", "")
        classes = [by_class.get(name, "") for name in fields.get("architectures") or ()]
        for kind in (said, TRANSFORMERS_NAMES.get(said, ""), *classes):
            if kind in known:
                given = {key: value for key, value in fields.items() if key not in (*_NOT_SHAPE, "model_type")}
                given = _with_known_activation(given)
                if "text_config" in known[kind].sub_configs and not any(key in given for key in DECODERS):
                    given = {"text_config": given}
                return known[kind].from_dict(given)
    kinds = " with ".join(str(each["model_type"]) for each in (config, inner) if each.get("model_type"))
    version = transformers.__version__
    raise SpecError(
        f"{source}: model_type is {kinds or 'missing'}: neither ladder-sim nor transformers {version} has it",
        hint=_WAY_OUT,
    )


def _with_known_activation(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with another activation for one that transformers has not: it changes no shape."""
    known = transformers.activations.ACT2FN
    return {
        key: "silu" if key.endswith("hidden_act") and value not in known else value for key, value in fields.items()
    }


def _built(config: Any, text: Any) -> nn.Module:
    """Return the model's decoder, whose configuration is `text`, on the meta device."""
    mapped = transformers.models.auto.modeling_auto.MODEL_MAPPING
    chosen = text if type(text) in mapped else config
    for each in (chosen, text):
        each._attn_implementation = _NAME
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(chosen)  # type: ignore[no-untyped-call]
    return model if chosen is text else model.get_decoder()  # type: ignore[no-any-return]


@dataclass(eq=False)
class _Product:
    """A linear layer as it ran."""

    n: int
    k: int
    read: Tensor
    index: nn.Module | None
    """The index that it is part of."""
    routes: bool
    """It scores experts, by its name."""


@dataclass
class _Norm:
    """A norm as it ran."""

    width: int
    """Channels of one token, all heads together."""
    weights: int


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


_Event = TypeVar("_Event", _Product, _Norm, _Attention, _Experts)


@dataclass
class _Block:
    """A part of a layer as it ran."""

    module: nn.Module
    mixes: bool
    """It was given the cache."""
    top_k: int = 0
    """Entries of the cache that an earlier layer chose for it; 0: none did."""
    events: list[_Product | _Norm | _Attention | _Experts] = field(default_factory=list)

    def of(self, kind: type[_Event]) -> list[_Event]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def parts(self) -> "tuple[_Block, _Attention | None, _Block]":
        """What ran before attention, attention, and what ran after it; of a state, after it is the last layer."""
        call = next(iter(self.of(_Attention)), None)
        at = self.events.index(call) if call else self.events.index(self.of(_Product)[-1])
        return replace(self, events=self.events[:at]), call, replace(self, events=self.events[at:])


@dataclass
class _Layer:
    """A layer as it ran, and what the cache holds of it."""

    blocks: list[_Block] = field(default_factory=list)
    window: int = 0
    cached: dict[str, Tensor] = field(default_factory=dict)
    """Tensors of the cache by where they are in it."""

    @property
    def parallel(self) -> bool:
        """Whether what mixes tokens and what does not read the same tensor."""
        reads = [(block.mixes, block.of(_Product)[0].read) for block in self.blocks if block.of(_Product)]
        return any(one is other for mixes, one in reads for others, other in reads if mixes and not others)


class _Recorder:
    """Records a forward pass by hooks on the modules of every layer; `layers` are what ran."""

    def __init__(self, text: Any) -> None:
        self.layers: list[_Layer] = []

        # children of layers that normalise
        self.norms = 0
        self._text = text
        self._events: list[Any] = []

        # before a model is built, which must know it
        transformers.AttentionInterface.register(_NAME, self._attention)
        transformers.AttentionMaskInterface.register(_NAME, transformers.masking_utils.eager_mask)

    def run(self, model: nn.Module) -> None:
        """Run a model, and record its layers."""
        stacks = (each for each in model.modules() if isinstance(each, nn.ModuleList))
        stack = next(each for each in stacks if len(each) == self._text.num_hidden_layers)
        self.layers = [_Layer() for _ in stack]
        for layer, module in zip(self.layers, stack, strict=True):
            self._watch(layer, module)
        output = model(input_ids=torch.zeros(1, _TOKENS, dtype=torch.long, device="meta"), use_cache=True)
        cache = getattr(output, "past_key_values", None) or getattr(output, "cache_params", None)
        # those of layers without one are left out at the end
        for layer, kept in zip(self.layers, cache.layers if cache else (), strict=False):
            layer.window = getattr(kept, "sliding_window", None) or 0
            layer.cached = dict(_tensors(vars(kept), ""))

    def _watch(self, layer: _Layer, module: nn.Module) -> None:
        indexes = {id(part): each for each in module.modules() if _is(each, "Indexer") for part in each.modules()}
        for name, part in module.named_modules():
            if isinstance(part, nn.Linear):
                routes = name.rpartition(".")[2] in ("gate", "router")
                part.register_forward_pre_hook(partial(self._linear, indexes.get(id(part)), routes))
            elif _expert_weights(part):
                # engines run them in their own ways, and transformers in one that needs data
                part.forward = partial(self._experts, part)
            elif _is(part, "Norm") and id(part) not in indexes:
                part.register_forward_pre_hook(self._norm)
        for child in module.children():
            self.norms += _is(child, "Norm")
            child.register_forward_pre_hook(partial(self._enter, layer), with_kwargs=True)

    def _enter(self, layer: _Layer, module: nn.Module, args: Any, options: Mapping[str, Any]) -> None:
        given = (*args, *options.values())
        mixes = any(isinstance(each, transformers.Cache) for each in given)
        # numbers of entries by sequence and token
        chosen = any(isinstance(each, Tensor) and each.dtype == torch.int32 and each.dim() == 3 for each in given)
        layer.blocks.append(_Block(module, mixes, self._text.index_topk if chosen else 0))
        self._events = layer.blocks[-1].events

    def _linear(self, index: nn.Module | None, routes: bool, module: nn.Linear, args: tuple[Tensor, ...]) -> None:
        self._events.append(_Product(module.out_features, module.in_features, args[0], index, routes))

    def _norm(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._events.append(_Norm(args[0].numel() // _TOKENS, sum(each.numel() for each in module.parameters())))

    def _experts(self, module: nn.Module, hidden: Tensor, *args: Any, **options: Any) -> Tensor:
        # tokens by chosen experts, of whole numbers; where that is missing, every expert is given every token
        chosen = next((each for each in (*args, *options.values()) if not each.is_floating_point()), None)
        top_k = self._text.num_experts_per_tok if chosen is None else chosen.shape[-1]
        self._events.append(_Experts(hidden.shape[-1], top_k, module))
        return torch.empty_like(hidden)

    def _attention(self, _: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        self._events.append(
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


def _is(module: nn.Module, kind: str) -> bool:
    """Whether a module is an "Indexer", a "Norm" or the like, by the end of its class's name."""
    return type(module).__name__.endswith(kind)


def _expert_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of routed experts, a matrix for each; empty for other modules."""
    weights = [each for each in module.parameters(recurse=False) if each.dim() == 3]
    return weights if _is(module, "Experts") else []


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor) and value.dim() > 1:
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(each, f"{path}.{key}".lstrip("."))


def _blocks(layer: _Layer, hidden: int) -> Iterator[BlockKind]:
    """Yield the kinds of a layer's blocks: what mixes tokens, and what does not; parts side by side are one."""
    used = [block for block in layer.blocks if any(isinstance(each, _Product | _Experts) for each in block.events)]
    mixers = [block for block in used if block.mixes]
    if mixers:
        yield _latent(mixers, layer, hidden) or _mixer(mixers, layer, hidden)
    # an output of one channel is a gate
    products = [each for block in used if not block.mixes for each in block.of(_Product) if each.n > 1]
    experts = next((call for block in used for call in block.of(_Experts)), None)
    if products or experts:
        yield _feed_forward(products, experts, hidden)


def _index(block: _Block) -> Index | None:
    """Return what chooses the entries that a block reads: an index of its own, by the fields of that, or an earlier."""
    module: Any = next((product.index for product in block.of(_Product) if product.index), None)
    if module is None:
        return Index(heads=0, dim=0, top_k=block.top_k) if block.top_k else None
    blocks = getattr(module, "topk_blocks", 0) * getattr(module, "block_size", 0)
    return Index(
        heads=getattr(module, "n_heads", None) or module.num_heads,
        dim=module.head_dim,
        top_k=getattr(module, "index_topk", None) or blocks,
    )


def _latent(mixers: list[_Block], layer: _Layer, hidden: int) -> Mla | None:
    """Return latent attention, if the cache holds one vector for all heads instead of what these read."""
    _, call, _ = mixers[0].parts
    keys, values = layer.cached.get("keys"), layer.cached.get("values")
    if len(mixers) > 1 or call is None or keys is None or values is None or keys.shape[1] == call.kv_heads:
        return None
    rope = values.shape[-1]
    products = mixers[0].of(_Product)
    queries = next(each for each in products if each.n == call.heads * call.key_dim)
    return Mla(
        hidden=hidden,
        heads=call.heads,
        kv_lora_rank=keys.shape[-1],
        q_lora_rank=0 if queries.k == hidden else queries.k,
        nope_head_dim=call.key_dim - rope,
        rope_head_dim=rope,
        value_head_dim=call.value_dim,
        index=_index(mixers[0]),
    )


def _mixer(mixers: list[_Block], layer: _Layer, hidden: int) -> Mixer:
    cores: list[Attend | State] = []
    before: list[_Product] = []
    after: list[_Product] = []
    norms: list[_Norm] = []
    for block in mixers:
        start, call, end = block.parts
        before, after = before + start.of(_Product), after + end.of(_Product)
        if call is None:
            cores.append(_state(layer, block.module))
        else:
            cores += _attends(call, layer, _index(block))
            norms += start.of(_Norm)
    core = next((core for core in cores if isinstance(core, Attend)), None)
    inputs = _inputs(before, core, hidden)
    outputs = [Linear(n=each.n, k=each.k, sharding="rows") for each in after]
    if outputs[0].n != hidden:
        # in two steps, of which the first is made for each head or group of heads
        outputs[0] = replace(outputs[0], sharding="columns")
    queries = core.heads * core.key_dim if core else 0
    gates = 0
    if core and len(cores) == 1:
        columns = sum(linear.n for group in inputs for linear in group if linear.sharding == "columns")
        gates = after[0].k if columns > queries + core.kv_heads * (core.key_dim + core.value_dim) else 0
    return Mixer(
        hidden=hidden,
        inputs=inputs,
        cores=tuple(cores),
        outputs=tuple(outputs),
        norms=tuple(norm.width for norm in norms),
        joint_norms=any(norm.width == norm.weights == queries for norm in norms),
        gates=gates,
        parameters=sum(each.numel() for block in mixers for each in block.module.parameters()),
    )


def _attends(call: _Attention, layer: _Layer, index: Index | None) -> Iterator[Attend]:
    """Yield attention to the cache; entries that stand for several tokens come behind a window of single ones."""
    window = layer.window or call.window
    own = Attend(
        heads=call.heads, kv_heads=call.kv_heads, key_dim=call.key_dim, value_dim=call.value_dim, window=window
    )
    compressed = call.entries - _TOKENS
    if compressed <= 0:
        yield replace(own, index=index)
        return
    yield own
    yield replace(own, window=0, every=_TOKENS // compressed, index=index)


def _state(layer: _Layer, module: nn.Module) -> State:
    states = {path: each for path, each in layer.cached.items() if path.startswith(("conv_states", "recurrent_states"))}
    if not states:
        raise ValueError("its cache does not show what a layer without attention keeps")
    largest = max(states.values(), key=Tensor.numel)
    convolutions = [each for each in states.values() if each is not largest and each.dim() == largest.dim() - 1]
    return State(
        heads=largest.shape[1],
        elements=largest.numel(),
        size_bytes=sum(each.numel() * each.element_size() for each in states.values()),
        rule=next((rule for kind, rule in _RULES.items() if _is(module, kind)), ""),
        channels=sum(each.shape[1] for each in convolutions),
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
        # the smallest that feeds no other one
        earlier = [each for each in earlier if sharding[each] != "none"] or earlier
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


def _feed_forward(products: list[_Product], experts: _Experts | None, hidden: int) -> Dense | Moe:
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
    inner = [each for each in products if not (each.routes and each.n == count) and (each.n, each.k) not in around]
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


def _with_latent_experts(block: BlockKind, width: int) -> BlockKind:
    """Return a block whose experts have the width that a config says, which a model's class may not read (Kimi K3)."""
    if not isinstance(block, Moe) or not width or block.expert.hidden == width:
        return block
    return replace(block, expert=replace(block.expert, hidden=width), hidden=block.expert.hidden)


def _mlp(products: list[_Product], hidden: int) -> Dense | None:
    """Return the MLPs that linear layers make up, as one; None if there are none."""
    downs = [each for each in products if each.n == hidden and each.k != hidden] or products[-1:]
    width = sum(each.k for each in downs)
    ups = sum(each.n for each in products if each not in downs and each.k == hidden)
    return Dense(hidden=hidden, width=width, gated=ups >= 2 * width) if width and ups else None
