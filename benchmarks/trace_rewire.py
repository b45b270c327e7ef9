"""`ladder-sim trace predict` of a standard run, compared with real ladder runs, on CPUs.

The runtime decodes in both wirings, in turns step by step, under the profiler. Every standard step is rewired as ladder
and compared with the next ladder step, so that other load affects both equally. Exits with 1 if the whole interval of a
case's median error is beyond the bound::

    python benchmarks/trace_rewire.py [--pairs 30]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ladder_sim.traces.contention import default_contention
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay
from ladder_sim.traces.wirings import predict_variants
from ladder_sim.units import format_seconds

BOUND = 0.08
# percentiles
INTERVAL = (5, 95)
RESAMPLES = 2000
TURNS = ("standard", "ladder")
HEAD_DIM = 128
PROMPT = 32
# one latency for all messages, short enough for the runtime to spin: a core that slept starts cold
LINK = "bytes,seconds\n1,280e-6\n1e9,280.0003e-6\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How ranks communicate."""

    name: str
    backend: str
    """Of the runtime."""
    tp: int
    """Tensor-parallel degree."""
    processes: int
    """That run these ranks."""
    hidden: int
    """Width of the model."""
    layers: int
    """Of it."""

    def model(self) -> dict[str, object]:
        """Its config.json."""
        return {
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // HEAD_DIM,
            "intermediate_size": 4 * self.hidden,
            "vocab_size": 1024,
        }


CASES = (
    Case(name="emulated link, TP 4", backend="emulate", tp=4, processes=1, hidden=1024, layers=6),
    Case(name="gloo, TP 2", backend="gloo", tp=2, processes=2, hidden=2048, layers=4),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare rewired traces with measured ladder runs.")
    parser.add_argument("--pairs", type=int, default=30, help="standard and ladder steps of each case")
    parser.add_argument("--record", metavar="CASE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(next(case for case in CASES if case.name == arguments.record), arguments.pairs)
        return 0
    print("| case | standard | ladder, predicted | ladder, measured | error | 90 % interval | |")
    print("|---|---|---|---|---|---|---|", flush=True)
    beyond = [case for case in CASES if not compare(case, arguments.pairs)]
    return int(bool(beyond))


def compare(case: Case, pairs: int) -> bool:
    """Measure a case and print its row; returns whether its error may be within the bound."""
    with tempfile.TemporaryDirectory() as name:
        run(case, pairs, Path(name))
        graph = load([Path(name, "trace")])
    measured_s = np.array([step.recorded_s for step in replay(graph).steps])
    standard_s, ladder_s = measured_s[::2], measured_s[1::2]
    predicted_s = np.array([predicted(graph.of_step(2 * pair)) for pair in range(pairs)])
    return judge(case.name, standard_s, predicted_s, ladder_s)


def judge(
    name: str,
    standard_s: npt.NDArray[np.float64],
    predicted_s: npt.NDArray[np.float64],
    ladder_s: npt.NDArray[np.float64],
) -> bool:
    """Print the row of a case; returns whether its error may be within the bound."""
    errors = predicted_s / ladder_s - 1.0
    draws = np.random.default_rng(0).choice(errors, (RESAMPLES, len(errors)))
    low, high = np.percentile(np.median(draws, axis=1), INTERVAL)
    within = bool(low <= BOUND and high >= -BOUND)
    times = " | ".join(format_seconds(median(seconds)) for seconds in (standard_s, predicted_s, ladder_s))
    verdict = f"{'within' if within else 'BEYOND'} {BOUND:.0%}"
    print(f"| {name} | {times} | {median(errors):+.1%} | {low:+.1%} to {high:+.1%} | {verdict} |", flush=True)
    return within


def predicted(step: TraceGraph) -> float:
    """Time of a recorded standard step as ladder, seconds."""
    return predict_variants(step, ["ladder"], contention=default_contention(step))["ladder"].seconds


def median(values: npt.NDArray[np.float64]) -> float:
    return float(np.median(values))


def run(case: Case, pairs: int, folder: Path) -> None:
    """Start this file once for each of the case's processes."""
    (folder / "config.json").write_text(json.dumps(case.model()), "utf-8")
    (folder / "link.csv").write_text(LINK, "utf-8")
    command = [sys.executable, str(Path(__file__).resolve()), f"--pairs={pairs}", f"--record={case.name}"]
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99"}
    started = []
    for rank in range(case.processes):
        place = {"RANK": str(rank), "WORLD_SIZE": str(case.processes), "LADDER_RUNTIME_FOLDER": str(folder)}
        started.append(subprocess.Popen(command, cwd=folder, env={**os.environ, **quiet, **place}))
    codes = [process.wait() for process in started]
    if any(codes):
        sys.exit(f"{case.name}: a rank failed")


def record(case: Case, pairs: int) -> None:
    """Be one rank, in the folder with the case's files."""
    import torch

    from runtime.assemble import assemble
    from runtime.comm.emulate import EmulatedLink
    from runtime.comm.process_group import Degrees
    from runtime.comm.rendezvous import connect
    from runtime.config import CommConfig, EngineConfig, ModelConfig
    from runtime.model.wiring import lay_out
    from runtime.trace import MarkedLink, recorded_steps

    torch.set_num_threads(1)
    shape = ModelConfig.from_file(Path("config.json"))
    comm = connect(CommConfig(backend=case.backend, table=Path("link.csv")), Degrees(case.tp))
    warmups = 4
    steps = len(TURNS) * pairs
    generator = assemble(
        shape,
        EngineConfig(),
        MarkedLink(comm) if isinstance(comm, EmulatedLink) else comm,
        device=torch.device("cpu"),
        dtype=torch.float32,
        batch=1,
        prompt=PROMPT,
        gen=1 + warmups + steps,
        seed=0,
    )
    wirings = [lay_out(name, shape.layers) for name in TURNS]
    generator.prefill(wirings[0])
    gloo = case.backend == "gloo"
    for number in recorded_steps("trace", steps=steps, warmups=warmups, observe_steps=gloo):
        generator.decode(wirings[number % 2], 1 + number)
    comm.barrier()
    sys.stdout.flush()
    # a process group waits for its threads in its destructor
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
