"""Measure every wiring by the protocol of the Ladder Residual paper, and compare them fairly.

A request is a prefill and `gen - 1` decode steps, timed apart; its throughput counts both. Warm-ups come first. All
variants share one process, one set of weights and one cache, and take turns request by request. Each round starts with
another one, so that a machine's drift affects all equally. If `within` is given, rounds go on until speedups are known
as well as that.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from ladder_sim.errors import UsageError
from ladder_sim.system.files import Schema, locked
from ladder_sim.system.progress import Progress
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim_runtime.assemble import TORCH_DTYPES, assemble, device_of
from ladder_sim_runtime.comm.base import CommTimes
from ladder_sim_runtime.comm.emulate import EmulatedLink
from ladder_sim_runtime.comm.process_group import Degrees
from ladder_sim_runtime.comm.rendezvous import Place, connect
from ladder_sim_runtime.config import BenchConfig, CommConfig, EngineConfig, ExecutionConfig, ModelConfig
from ladder_sim_runtime.device import kind_of
from ladder_sim_runtime.environment import environment, gpu_links, gpu_states, variables
from ladder_sim_runtime.generate import Generator
from ladder_sim_runtime.memory import Workload, enough_memory, needs
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.trace import MarkedLink, recorded_steps

SCHEMA = Schema()
# steps of a trace after the prefill
TRACED_DECODES = 5


def bench(
    config: BenchConfig,
    engine: EngineConfig,
    links: CommConfig,
    trace: Path | None = None,
    execution: ExecutionConfig | None = None,
) -> dict[str, object]:
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
        return _measured(config, engine, links, trace, execution or ExecutionConfig())


def _prepared(
    config: BenchConfig, engine: EngineConfig, links: CommConfig, execution: ExecutionConfig
) -> tuple[Generator, list[Wiring], str]:
    """Return a generator with a model and batch, its wirings, and the name of its data type."""
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
        wirings=wirings,
        execution=execution,
    )
    return generator, wirings, dtype


def _measured(
    config: BenchConfig, engine: EngineConfig, links: CommConfig, trace: Path | None, execution: ExecutionConfig
) -> dict[str, object]:
    generator, wirings, dtype = _prepared(config, engine, links, execution)
    model, comm = generator.model, generator.model.comm
    is_first = Place.from_environment().rank == 0
    total = (config.warmups + config.repeats) * len(wirings)
    with Progress(total, "requests", wanted=is_first) as progress:
        done = _Requests(generator, wirings, lambda number: progress(number, max(number, total)))
        for _ in range(config.warmups):
            done.round(0)
        before = gpu_states() if is_first else []
        rounds = _rounds(done, config)
        after = gpu_states() if is_first else []
        watched = None
        if model.embedding_VD.is_cuda:
            # what measures communication takes time, too: in requests of their own, with graphs of their own
            generator.forget()
            watched = done.round(0, watched=True)
            generator.forget()
    samples = {wiring.name: [turns[wiring.name] for turns in rounds] for wiring in wirings}
    planned_bytes = _planned_bytes(config, generator, wirings)
    header: dict[str, object] = {
        "run": {
            **asdict(config),
            **asdict(execution),
            "repeats": len(rounds),
            "batching": "static",
            "model": str(config.model),
            "dtype": dtype,
            "backend": comm.name,
            **comm.settings(),
        },
        "execution": asdict(generator.execution),
        "engine": asdict(engine),
        "shape": asdict(model.config),
        "environment": {**environment(), "variables": variables(), "links": gpu_links() if is_first else ""},
        "gpus": {"before": before, "after": after},
        "memory": {"planned_bytes": planned_bytes, "reserved_bytes": kind_of(model.embedding_VD).reserved_bytes()},
    }
    if trace is not None:
        _trace(generator, wirings, trace)
    tokens = config.batch * config.gen
    standard = samples.get("standard")
    variants = {
        name: _summary(requests, standard, [watched[name]] if watched else requests, tokens, config.gen - 1)
        for name, requests in samples.items()
    }
    return SCHEMA.marked(**header, variants=variants)


def _planned_bytes(config: BenchConfig, generator: Generator, wirings: Sequence[Wiring]) -> int:
    """Return the bytes of memory that a rank was expected to need."""
    model, comm = generator.model, generator.model.comm
    batch, dtype, recorded = config.batch // comm.exchange.size, model.embedding_VD.dtype, generator.execution.recorded
    work = Workload(batch=batch, prompt=config.prompt, gen=config.gen, dtype=dtype, wirings=wirings, recorded=recorded)
    return sum(needs(model.config, model.engine, work, comm).of_batch(batch, comm.pipeline.stages))


class _Requests:
    """One request of each wiring after the other, in rounds."""

    def __init__(self, generator: Generator, wirings: Sequence[Wiring], progress: Callable[[int], None]) -> None:
        self._generator, self._wirings, self._progress = generator, wirings, progress
        self._done = count(1)

    def round(self, number: int, *, watched: bool = False) -> "dict[str, _Sample]":
        """Run every wiring once; return times on the slowest rank by wiring, with communication if `watched`."""
        turn, generator = number % len(self._wirings), self._generator
        samples = {}
        for wiring in (*self._wirings[turn:], *self._wirings[:turn]):
            with enough_memory(f"a request of {wiring.name}", generator.model.comm.rank):
                samples[wiring.name] = _request(generator, wiring, watched=watched)
            self._progress(next(self._done))
        rows = generator.model.comm.slowest(torch.tensor(list(samples.values()), dtype=torch.float64)).tolist()
        return {name: _Sample(*row) for name, row in zip(samples, rows, strict=True)}


def _rounds(done: _Requests, config: BenchConfig) -> "list[dict[str, _Sample]]":
    """Return `repeats` rounds, and more while speedups are not known well enough and there is time."""
    rounds = [done.round(number) for number in range(config.repeats)]
    # as the slowest ranks see it, so that all stop at once
    spent_s = 0.0
    while config.within is not None and spent_s < config.budget_s and not _narrow(rounds, config.within):
        rounds.append(done.round(len(rounds)))
        spent_s += sum(sample.request_s for sample in rounds[-1].values())
    return rounds


def _narrow(rounds: "Sequence[dict[str, _Sample]]", within: float) -> bool:
    """Whether the intervals of all speedups are as narrow as this."""
    for name in rounds[0] if "standard" in rounds[0] else ():
        ratios = [turns["standard"].request_s / turns[name].request_s for turns in rounds]
        interval = median_interval(ratios)
        if interval is None or interval[1] - interval[0] > 2 * within * median(ratios):
            return False
    return True


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a population's median, by a sample of it, whatever its distribution.

    Between two of the sorted values: how many are below the median is binomial (Conover, Practical Nonparametric
    Statistics, section 3.2). None: there are fewer than the six that it takes.

    Examples
    --------
    >>> median_interval([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    (2, 9)
    """
    size, below = len(values), -1
    while sum(math.comb(size, i) for i in range(below + 2)) / 2**size <= 0.025:
        below += 1
    ordered = sorted(values)
    return (ordered[below], ordered[-1 - below]) if below >= 0 else None


class _Sample(NamedTuple):
    """Seconds of one request."""

    prefill_s: float
    """Until the first new token."""
    decode_s: float
    """All later ones."""
    comm_s: float
    """Collectives; NaN: they were not measured."""
    exposed_comm_s: float
    """Computation waiting for them."""

    @property
    def request_s(self) -> float:
        return self.prefill_s + self.decode_s


def _request(generator: Generator, wiring: Wiring, *, watched: bool = False) -> _Sample:
    comm = generator.model.comm
    comm.barrier()
    # an emulated link of CPUs knows its times at no cost
    with comm.watched() if watched or isinstance(comm, EmulatedLink) else nullcontext(CommTimes()) as times:
        start_s = _now()
        generator.prefill(wiring)
        first_s = _now()
        times.settle()
        for step in range(1, generator.gen):
            generator.decode(wiring, step)
            times.settle(replays=True)
        generator.finish()
        end_s = _now()
    return _Sample(first_s - start_s, end_s - first_s, times.comm_s, times.exposed_s)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _summary(
    samples: Sequence[_Sample], standard: Sequence[_Sample] | None, watched: Sequence[_Sample], tokens: int, steps: int
) -> dict[str, object]:
    """Return the medians and every repeat of a variant; its speedup is the median over rounds against standard."""
    summary: dict[str, object] = {
        "ttft_s": median(x.prefill_s for x in samples),
        "tpot_s": median(x.decode_s for x in samples) / steps if steps else None,
        "request_s": median(x.request_s for x in samples),
        "tokens_per_s": median(tokens / x.request_s for x in samples),
    }
    if standard is not None:
        ratios = [base.request_s / x.request_s for base, x in zip(standard, samples, strict=True)]
        summary["speedup"], summary["speedup_95"] = median(ratios), median_interval(ratios)
    if not math.isnan(watched[0].comm_s):
        summary["comm_s"] = median(x.comm_s for x in watched)
        summary["exposed_comm_s"] = median(x.exposed_comm_s for x in watched)
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
