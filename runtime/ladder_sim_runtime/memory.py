"""Whether a run fits the memory of its ranks, and what did not fit if it does not."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ladder_sim.errors import InfeasibleError
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim_runtime.comm.base import Communicator, Pipeline
from ladder_sim_runtime.config import EngineConfig, ModelConfig, Phase
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder

# share of the free memory; the rest is for what allocators waste
_USABLE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a rank's decoder is loaded for."""

    batch: int
    """Sequences of the rank's group."""
    prompt: int
    """Tokens of the longest prompt."""
    gen: int
    """New tokens of each sequence."""
    dtype: torch.dtype
    """Data type of weights and activations."""
    wirings: Sequence[Wiring] = ()
    """Empty: those that wait for one output at most."""
    recorded: Collection[Phase] = ()
    """Phases whose steps become graphs."""


class Needs(NamedTuple):
    """Bytes that a rank needs, for one sequence or a batch."""

    weights: int
    """Bytes of the shard's weights."""
    cache: int
    """Keys and values."""
    prefill: int
    """The tensors that a prefill makes and needs at the same time, at most."""
    graphs: int
    """Tensors that the largest recorded step makes and needs at the same time; all graphs share this memory."""

    def of_batch(self, batch: int, stages: int) -> Self:
        """Return the needs of a batch, from those of one sequence; stages of a pipeline serve it in parts."""
        each = -(-batch // stages)
        return self._replace(cache=batch * self.cache, prefill=each * self.prefill, graphs=each * self.graphs)


def needs(config: ModelConfig, engine: EngineConfig, work: Workload, comm: Communicator) -> Needs:
    """Return what a rank needs for one sequence, counted in passes on PyTorch's device without memory.

    A recorded prefill counts twice, in its graph and by itself: it is warmed up before it is recorded.
    """
    pipeline = Pipeline(comm.pipeline.stage, comm.pipeline.stages)
    alone = Communicator(comm.size, pipeline, Communicator(comm.exchange.size))
    # the most outputs that wait to be added; other differences between wirings are smaller than what is wasted
    wirings, context = work.wirings or [lay_out("ladder", config.layers)], work.prompt + work.gen
    latest = max(wirings, key=lambda wiring: wiring.longest_wait)
    with torch.device("meta"), default_dtype(work.dtype), torch.inference_mode():
        # who gets how many copies in an all-to-all depends on the tokens; they are as many in a gather or fewer
        model = Decoder(config, replace(engine, dispatch="allgather"), alone, positions=context)
        cache = model.cache(batch=1)

        def peak_bytes(tokens: int, **now: Any) -> int:
            with kernels.observed(_without_values), _Alive() as alive:
                model(torch.zeros(1, tokens, dtype=torch.long), latest, cache=cache, **now)
            peak: int = alive.peak_bytes
            return peak

        prefill, graphs = peak_bytes(work.prompt), 0
        # stages of a pipeline record nothing
        if pipeline.stages == 1 and "prefill" in work.recorded:
            graphs = prefill
        if pipeline.stages == 1 and "decode" in work.recorded:
            position_1 = torch.zeros(1, dtype=torch.long)
            graphs = max(graphs, peak_bytes(1, position_T=position_1, context=context))
    return Needs(sum(weight.nbytes for weight in model.parameters()), cache.nbytes, prefill, graphs)


def check_fits(
    config: ModelConfig, engine: EngineConfig, work: Workload, comm: Communicator, free_bytes: float
) -> None:
    """Raise InfeasibleError with what would fit, if weights, cache and steps exceed the free memory."""
    usable, stages = free_bytes * _USABLE, comm.pipeline.stages
    each = needs(config, engine, work, comm)
    plan = each.of_batch(work.batch, stages)
    if sum(plan) <= usable:
        return
    sequence = each.cache + (each.prefill + each.graphs) / stages
    largest_batch = int((usable - each.weights) // sequence)
    if largest_batch >= 1:
        hint = f"a batch of {min(largest_batch, work.batch - 1)} fits"
    else:
        layers = int(config.layers * usable / (each.weights + sequence))
        less = f"a model of about {layers} layers" if layers else "a smaller model, or a shorter prompt"
        hint = f"use more ranks with memory of their own, or {less}"
    graphs = f"{plan.graphs / 1e9:.1f} of CUDA graphs, " if plan.graphs else ""
    raise InfeasibleError(
        f"{sum(plan) / 1e9:.1f} GB needed per rank ({plan.weights / 1e9:.1f} of weights, "
        f"{plan.cache / 1e9:.1f} of cache, {plan.prefill / 1e9:.1f} of a prefill, {graphs}batch {work.batch}): "
        f"{free_bytes / 1e9:.1f} GB are free",
        hint=hint,
    )


def _without_values(kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a kernel on tensors without values: which experts tokens chose is not known, and all may be this rank's."""
    if kind != "experts":
        return run(*args)
    x_MD, _, chosen_Mk, up_LND = args[:4]
    copies = chosen_Mk.shape[0] * min(chosen_Mk.shape[1], len(up_LND))
    # copies of tokens, the outputs of one expert after the other, all of them, and weighted
    held = [x_MD.new_empty(copies, x_MD.shape[1]) for _ in range(4)]
    held[:2] = [x_MD.new_empty(len(x_MD), 2 * up_LND.shape[1])]
    return torch.empty_like(x_MD)


class _Alive(TorchDispatchMode):
    """Adds up the storages that operators make while they are alive; `peak_bytes` is the most so far."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes = self.peak_bytes = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # what is written in place was there before
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor):
                self._known.add(x.untyped_storage())
        result = operator(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.untyped_storage() not in self._known:
                self._count(x.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        size_bytes = storage.nbytes()
        self._known.add(storage)
        self._bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        weakref.finalize(storage, functools.partial(self._forget, size_bytes))

    def _forget(self, size_bytes: int) -> None:
        self._bytes -= size_bytes


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make floating-point tensors of this type meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def free_bytes(device: torch.device, ranks_here: int) -> float:
    """Free memory for each rank: of its GPU, or its share of the machine's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free)
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = dict(line.split(":") for line in lines)
    return float(fields["MemAvailable"].split()[0]) * 1024 / ranks_here


@contextlib.contextmanager
def enough_memory(what: str, rank: int) -> Iterator[None]:
    """Turn running out of memory for something into InfeasibleError."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        # what torch's allocator of the CPU says
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in text:
            raise
        raise InfeasibleError(
            f"rank {rank} ran out of memory for {what}: {text}",
            hint="use more ranks, a smaller batch or a shorter context",
        ) from None
