"""Measure every wiring by the protocol of the Ladder Residual paper, and compare them fairly.

A request is a prefill and `gen - 1` decode steps, timed apart; its throughput counts both. Warm-ups come first. All
variants share one process, one set of weights and one cache, and take turns request by request. Each round starts with
another one, so that a machine's drift affects all equally.
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from ladder_sim.errors import UsageError
from ladder_sim.system.files import locked
from ladder_sim.system.progress import Progress
from runtime.assemble import TORCH_DTYPES, assemble, device_of
from runtime.comm.base import Communicator
from runtime.comm.emulate import EmulatedLink
from runtime.comm.process_group import Degrees
from runtime.comm.rendezvous import CommConfig, Place, connect
from runtime.config import EngineConfig, ModelConfig, check_counts, check_dtype, check_groups
from runtime.environment import environment
from runtime.generate import Generator
from runtime.model import kernels
from runtime.model.wiring import Wiring, lay_out
from runtime.trace import MarkedLink, recorded_steps

SCHEMA_VERSION = 1
# steps of a trace after the prefill
TRACED_DECODES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What `bench` is to do."""

    model: Path
    """config.json."""
    variants: tuple[str, ...]
    """Wirings."""
    tp: int = 1
    """Tensor-parallel degree."""
    attention_dp: int = 1
    """Groups of ranks, each with attention of its own for its share of the batch."""
    pp: int = 1
    """Pipeline stages."""
    batch: int = 1
    """Sequences served together."""
    prompt: int = 1024
    """Tokens of each prompt."""
    gen: int = 512
    """New tokens of each sequence."""
    dtype: str = "auto"
    """One of DTYPES; auto: bf16 on GPUs, fp32 on CPUs."""
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
        check_counts(tp=self.tp, attention_dp=self.attention_dp, pp=self.pp)
        check_counts(batch=self.batch, prompt=self.prompt, gen=self.gen)
        check_counts(repeats=self.repeats, threads=self.threads)
        check_counts(minimum=0, warmups=self.warmups)
        check_dtype(self.dtype)
        check_groups(self.batch, self.attention_dp)


def bench(config: BenchConfig, engine: EngineConfig, links: CommConfig, trace: Path | None = None) -> dict[str, object]:
    """Measure; the result is what docs/runtime.md describes, and the same on every rank.

    With `trace` PyTorch's profiler records a prefill and a few decode steps of each variant there, in a folder each.
    """
    with ExitStack() as stack:
        if trace is not None:
            try:
                trace.mkdir(parents=True, exist_ok=True)
                if Place.from_environment().rank == 0:
                    # traces of two runs would be mixed
                    stack.enter_context(locked(trace))
            except OSError as error:
                hint = "give a folder that can be written"
                raise UsageError(f"--trace {trace}: {error.strerror}", hint=hint) from None
        return _measured(config, engine, links, trace)


def _measured(config: BenchConfig, engine: EngineConfig, links: CommConfig, trace: Path | None) -> dict[str, object]:
    torch.set_num_threads(config.threads)
    shape = ModelConfig.from_file(config.model)
    if shape.activation not in kernels.ACTIVATIONS:
        raise UsageError(f"unknown hidden_act '{shape.activation}'", hint=f"known: {', '.join(kernels.ACTIVATIONS)}")
    named = (lay_out(name, shape.layers, shape.ladder_layers) for name in config.variants)
    # one variant may have several names
    wirings = list({wiring.name: wiring for wiring in named}.values())
    comm = connect(links, Degrees(config.tp, config.attention_dp, config.pp))
    if engine.dispatch == "all-to-all" and comm.name in ("emulate", "none") and comm.exchange.size > 1:
        raise UsageError(
            f"--backend {comm.name} is one rank, which does not know what others would send it in an all-to-all",
            hint="leave out --dispatch, or use gloo or nccl",
        )
    device = device_of(comm)
    dtype = config.dtype if config.dtype != "auto" else {"cuda": "bf16", "cpu": "fp32"}[device.type]
    generator = assemble(
        shape,
        engine,
        comm,
        device=device,
        dtype=TORCH_DTYPES[dtype],
        batch=config.batch,
        prompt=config.prompt,
        gen=config.gen,
        seed=config.seed,
        cuda_graphs=config.cuda_graphs,
        compiled=config.compile,
    )
    rounds = _rounds(generator, wirings, config)
    samples = {wiring.name: _slowest([turns[wiring.name] for turns in rounds], comm) for wiring in wirings}

    header: dict[str, object] = {
        "run": {
            **asdict(config),
            "batching": "static",
            "model": str(config.model),
            "dtype": dtype,
            "backend": comm.name,
            **comm.settings(),
        },
        "engine": asdict(engine),
        "shape": asdict(shape),
        "environment": environment(),
    }
    if trace is not None:
        _trace(generator, wirings, trace)
    tokens = config.batch * config.gen
    standard = samples.get("standard")
    variants = {name: _summary(requests, standard, tokens, config.gen - 1) for name, requests in samples.items()}
    return {"schema_version": SCHEMA_VERSION, **header, "variants": variants}


def _rounds(generator: Generator, wirings: Sequence[Wiring], config: BenchConfig) -> "list[dict[str, _Sample]]":
    """One request of each wiring per round, by name; warm-ups come first and do not count."""
    rounds: list[dict[str, _Sample]] = []
    requests, done = (config.warmups + config.repeats) * len(wirings), count(1)
    with Progress(requests, "requests", wanted=generator.model.comm.rank == 0) as progress:
        for number in range(-config.warmups, config.repeats):
            # each begins with another one
            turn = max(0, number) % len(wirings)
            samples = {}
            for wiring in (*wirings[turn:], *wirings[:turn]):
                samples[wiring.name] = _request(generator, wiring)
                progress(next(done))
            if number >= 0:
                rounds.append(samples)
    return rounds


class _Sample(NamedTuple):
    """Seconds of one request."""

    prefill_s: float
    """Until the first new token."""
    decode_s: float
    """All later ones."""
    comm_s: float
    """Messages on the emulated link; NaN without one."""
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
    for step in range(1, generator.gen):
        generator.decode(wiring, step)
    generator.finish()
    end_s = _now()
    if link:
        busy_s, waited_s = link.busy_s - busy_s, link.waited_s - waited_s
    return _Sample(first_s - start_s, end_s - first_s, busy_s, waited_s)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _slowest(samples: Sequence[_Sample], comm: Communicator) -> list[_Sample]:
    """Each request's times on its slowest rank."""
    return [_Sample(*row) for row in comm.slowest(torch.tensor(samples, dtype=torch.float64)).tolist()]


def _summary(
    samples: Sequence[_Sample], standard: Sequence[_Sample] | None, tokens: int, steps: int
) -> dict[str, object]:
    """Medians of one variant, and every repeat; the speedup is the median over rounds, each against its standard."""
    summary: dict[str, object] = {
        "ttft_s": median(x.prefill_s for x in samples),
        "tpot_s": median(x.decode_s for x in samples) / steps if steps else None,
        "request_s": median(x.request_s for x in samples),
        "tokens_per_s": median(tokens / x.request_s for x in samples),
    }
    if standard is not None:
        pairs = zip(standard, samples, strict=True)
        summary["speedup"] = median(base.request_s / x.request_s for base, x in pairs)
    if not math.isnan(samples[0].comm_s):
        summary["comm_s"] = median(x.comm_s for x in samples)
        summary["exposed_comm_s"] = median(x.exposed_comm_s for x in samples)
    summary["repeats"] = [
        {"ttft_s": x.prefill_s, "decode_s": x.decode_s, "tokens_per_s": tokens / x.request_s} for x in samples
    ]
    return summary


def _trace(generator: Generator, wirings: Sequence[Wiring], folder: Path) -> None:
    model, comm = generator.model, generator.model.comm
    if isinstance(comm, EmulatedLink):
        model.comm = MarkedLink(comm)
    # decode steps; 0 is the prefill
    steps = range(min(TRACED_DECODES + 1, generator.gen))
    warmups = steps[:2]
    # NCCL's waits are seen on the GPU, the emulated link's are marked
    observe_steps = comm.name == "gloo"
    for wiring in wirings:
        comm.barrier()
        place = folder / wiring.name.replace(":", "-")
        for number in recorded_steps(place, steps=len(steps), warmups=len(warmups), observe_steps=observe_steps):
            step = (*warmups, *steps)[number]
            if step:
                generator.decode(wiring, step)
            else:
                generator.prefill(wiring)
    model.comm = comm
    comm.barrier()
