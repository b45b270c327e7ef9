"""Measure every wiring by the protocol of the Ladder Residual paper, and compare them fairly.

A request is a prefill and `gen - 1` decode steps, timed apart; its throughput counts both. Warm-ups come first. All
variants share one process, one set of weights and one cache, and take turns request by request, each round starting
with another one, so that a machine's drift meets all alike.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from ladder_sim.errors import UsageError
from runtime.assemble import DTYPES, assemble, device_of
from runtime.comm.base import Communicator
from runtime.comm.emulate import EmulatedLink
from runtime.comm.rendezvous import CommConfig, connect
from runtime.config import EngineConfig, ModelConfig
from runtime.environment import environment
from runtime.generate import Generator
from runtime.model import kernels
from runtime.model.wiring import Wiring, lay_out
from runtime.trace import MarkedLink, recorded_steps

SCHEMA_VERSION = 1
# steps of a trace besides the prefill
TRACED_DECODES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is measured."""

    model: Path
    """config.json."""
    variants: tuple[str, ...]
    """Wirings, taking turns."""
    tp: int = 1
    """Tensor-parallel degree."""
    batch: int = 1
    """Sequences served together."""
    prompt: int = 1024
    """Tokens of each prompt."""
    gen: int = 512
    """New tokens of each sequence."""
    dtype: str = "auto"
    """A key of DTYPES; auto: bf16 on GPUs, fp32 on CPUs."""
    warmups: int = 5
    """Requests of each variant before those that count."""
    repeats: int = 10
    """Requests of each variant that count."""
    threads: int = 1
    """CPU threads of each rank."""
    seed: int = 0
    """Of weights and prompts."""
    cuda_graphs: bool = False
    """Replay decode steps as CUDA graphs."""
    compile: bool = False
    """Run blocks through torch.compile."""

    def __post_init__(self) -> None:
        for name in ("tp", "batch", "prompt", "gen", "warmups", "repeats", "threads"):
            least = 0 if name == "warmups" else 1
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}: must be {least} or more")
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise UsageError(f"unknown dtype '{self.dtype}'", hint=f"known: auto, {', '.join(DTYPES)}")


def bench(
    config: BenchConfig,
    engine: EngineConfig,
    links: CommConfig,
    trace: Path | None = None,
) -> dict[str, object]:
    """Measure; the result is what docs/runtime.md describes, and the same on every rank.

    With `trace` PyTorch's profiler records a prefill and a few decode steps of each variant there, in a folder each.
    """
    if trace is not None:
        _make_folder("--trace", trace)
    torch.set_num_threads(config.threads)
    shape = ModelConfig.from_file(config.model)
    if shape.activation not in kernels.ACTIVATIONS:
        raise UsageError(f"unknown hidden_act '{shape.activation}'", hint=f"known: {', '.join(kernels.ACTIVATIONS)}")
    wirings = [lay_out(name, shape.layers, shape.ladder_layers) for name in dict.fromkeys(config.variants)]
    comm = connect(links, config.tp)
    device = device_of(comm)
    dtype = config.dtype if config.dtype != "auto" else {"cuda": "bf16", "cpu": "fp32"}[device.type]
    generator = assemble(
        shape,
        engine,
        comm,
        device=device,
        dtype=DTYPES[dtype],
        batch=config.batch,
        prompt=config.prompt,
        gen=config.gen,
        seed=config.seed,
        cuda_graphs=config.cuda_graphs,
        compiled=config.compile,
    )
    for _ in range(config.warmups):
        for wiring in wirings:
            _request(generator, wiring)
    rounds = []
    for number in range(config.repeats):
        turn = number % len(wirings)
        rounds.append({wiring.name: _request(generator, wiring) for wiring in wirings[turn:] + wirings[:turn]})
    samples = {wiring.name: _slowest([found[wiring.name] for found in rounds], comm) for wiring in wirings}

    header: dict[str, object] = {
        "run": {**asdict(config), "model": str(config.model), "dtype": dtype, "backend": comm.name, **comm.settings()},
        "engine": asdict(engine),
        "shape": asdict(shape),
        "environment": environment(),
    }
    if trace is not None:
        _trace(generator, wirings, trace)
    tokens = config.batch * config.gen
    variants = {
        name: _summary(found, samples.get("standard"), tokens, config.gen - 1) for name, found in samples.items()
    }
    return {"schema_version": SCHEMA_VERSION, **header, "variants": variants}


def _make_folder(flag: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag} {folder}: {error.strerror}", hint="give a folder that can be written") from None


class _Sample(NamedTuple):
    """Seconds of one request."""

    prefill_s: float
    """Until the first new token."""
    decode_s: float
    """All later ones."""
    comm_s: float
    """Messages on the emulated link; NaN where there is none."""
    exposed_comm_s: float
    """Computation waiting for that link."""

    @property
    def request_s(self) -> float:
        return self.prefill_s + self.decode_s


def _request(generator: Generator, wiring: Wiring) -> _Sample:
    comm = generator.model.comm
    link = comm if isinstance(comm, EmulatedLink) else None
    comm.barrier()
    busy_s, waited_s = (link.busy_s, link.waited_s) if link else (math.nan, math.nan)
    start_s = _now()
    generator.prefill(wiring)
    first_s = _now()
    for step in range(1, generator.tokens_BG.shape[1]):
        generator.decode(wiring, step)
    end_s = _now()
    if link:
        busy_s, waited_s = link.busy_s - busy_s, link.waited_s - waited_s
    return _Sample(first_s - start_s, end_s - first_s, busy_s, waited_s)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _slowest(samples: Sequence[_Sample], comm: Communicator) -> list[_Sample]:
    """A request has taken as long as it took its slowest rank."""
    return [_Sample(*row) for row in comm.slowest(torch.tensor(samples, dtype=torch.float64)).tolist()]


def _summary(
    samples: Sequence[_Sample], standard: Sequence[_Sample] | None, tokens: int, steps: int
) -> dict[str, object]:
    """Medians of one variant, and every repeat; the speedup is the median of the rounds', each against its standard."""
    found: dict[str, object] = {
        "ttft_s": median(one.prefill_s for one in samples),
        "tpot_s": median(one.decode_s for one in samples) / steps if steps else None,
        "request_s": median(one.request_s for one in samples),
        "tokens_per_s": median(tokens / one.request_s for one in samples),
    }
    if standard is not None:
        pairs = list(zip(standard, samples, strict=True))
        found["speedup"] = median(base.request_s / one.request_s for base, one in pairs)
    if not math.isnan(samples[0].comm_s):
        found["comm_s"] = median(one.comm_s for one in samples)
        found["exposed_comm_s"] = median(one.exposed_comm_s for one in samples)
    found["repeats"] = [
        {"ttft_s": one.prefill_s, "decode_s": one.decode_s, "tokens_per_s": tokens / one.request_s} for one in samples
    ]
    return found


def _trace(generator: Generator, wirings: Sequence[Wiring], folder: Path) -> None:
    model = generator.model
    inner = model.comm
    if isinstance(inner, EmulatedLink):
        model.comm = MarkedLink(inner)
    # decode steps; 0 is the prefill
    steps = range(min(TRACED_DECODES + 1, generator.tokens_BG.shape[1]))
    warmups = steps[:2]
    for wiring in wirings:
        inner.barrier()
        place = folder / wiring.name.replace(":", "-")
        # NCCL's waits are seen on the GPU, the emulated link's are marked
        gloo = inner.name == "gloo"
        for number in recorded_steps(place, steps=len(steps), warmups=len(warmups), observe_steps=gloo):
            step = (*warmups, *steps)[number]
            if step:
                generator.decode(wiring, step)
            else:
                generator.prefill(wiring)
    model.comm = inner
    inner.barrier()
