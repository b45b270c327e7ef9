"""A training step of ladder next to standard's in the runtime: time and memory by the latency of all-reduces.

    python benchmarks/training_step.py

One rank's part of TP 2 on one CPU thread; every all-reduce takes an emulated time. Steps take turns. Memory is what
autograd keeps for the backward pass. Ladder hides the all-reduces of the forward pass; those of the backward pass are
waited for where they are issued.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.autograd.graph import saved_tensors_hooks

from runtime.bench import median_interval
from runtime.comm.emulate import EmulatedLink
from runtime.comm.table import LatencyTable
from runtime.training.config import TrainingConfig, prepare_training
from runtime.training.loop import Run

LATENCIES_S = (1e-6, 0.3e-3, 1e-3, 3e-3)
PAIRS = 25
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 688,
    "vocab_size": 256,
}


def main() -> None:
    """Print a row for each latency."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "text.txt").write_bytes(Path(__file__).read_bytes() * 20)
        print(f"{'all-reduce':>10}{'standard':>16}{'ladder':>16}{'speedup (95 %)':>22}{'memory':>9}")
        for latency_s in LATENCIES_S:
            row(folder, latency_s)


def row(folder: Path, latency_s: float) -> None:
    """Steps of both at one latency."""
    runs, tokens = {}, 0
    for variant in ("standard", "ladder"):
        config = TrainingConfig(
            model=folder / "config.json",
            texts=(folder / "text.txt",),
            out=folder / f"{variant}-{latency_s}",
            variant=variant,
            batch=4,
            context=128,
            tp=2,
        )
        tokens = config.batch * config.context
        link = EmulatedLink(2, LatencyTable([(1.0, latency_s), (1e9, latency_s)]))
        runs[variant] = Run(prepare_training(config), config, link)
    kept = {variant: kept_bytes(run) for variant, run in runs.items()}
    seconds: dict[str, list[float]] = {variant: [] for variant in runs}
    for step in range(PAIRS):
        for variant, run in runs.items():
            begun_s = time.perf_counter()
            run.step(step)
            seconds[variant].append(time.perf_counter() - begun_s)
    each_us = {variant: 1e6 * statistics.median(values) / tokens for variant, values in seconds.items()}
    ratios = [a / b for a, b in zip(seconds["standard"], seconds["ladder"], strict=True)]
    low, high = median_interval(ratios) or (0.0, 0.0)
    line = f"{1e3 * latency_s:7.3g} ms" + "".join(f"{value:10.1f} us/tok" for value in each_us.values())
    line += f"{statistics.median(ratios):10.3f} ({low:.3f}-{high:.3f})"
    print(f"{line}{kept['ladder'] / kept['standard']:9.3f}", flush=True)


def kept_bytes(run: Run) -> int:
    """What autograd keeps of a step, each storage once."""
    storages = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        run.step(0)
    return sum(storages.values())


if __name__ == "__main__":
    main()
