"""How fast sweeps are, beside what they promise.

    python benchmarks/sweeps.py [--json]

Every sweep runs in a fresh process with two workers and writes a file; times include the start of all three.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from speed import Figure, median_s, quietly, shown, target

HARDWARE = {
    "model": "70b",
    "tp": "8",
    "intra.bandwidth": "50:900:+8.5GB/s",
    "intra.latency": "2:40:+0.38us",
    "gpu.hbm_bandwidth": "2:8:+0.06TB/s",
}
# 1,030,301 points: every one a request (prefill and decode over context) of four variants
TENTH = {**HARDWARE, "gpu.hbm_bandwidth": "2:8:+0.6TB/s"}
# 112,211 points
BATCHES = {"model": "70b", "tp": "8", "batch": "1:256:+1", "stack": "vllm"}
# a graph per point

_CODE = """
from pathlib import Path
from ladder_sim.sweeps.executors import Processes
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import how_of, run_to_file
grid = Grid({axes!r})
run_to_file(grid, how_of(grid, None, False), Processes(2), Path({path!r}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure sweeps beside their targets.")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    arguments = parser.parse_args()
    found = measure()
    if arguments.json:
        print(json.dumps([{**asdict(figure), "verdict": figure.verdict} for figure in found], indent=1))
    else:
        print("| what | measured | target | |\n|---|---|---|---|")
        for one in found:
            print(f"| {one.name} | {shown(one.value)} {one.unit} | {target(one)} | {one.verdict} |")
    return 0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.csv"
        million_s, tenth_s = sweep_s(HARDWARE, path), sweep_s(TENTH, path)
        flash_s = sweep_s({**HARDWARE, "stack": "vllm"}, path)
        # a child's peak counts from what this process had at the fork: nothing of the package is imported here yet
        peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        batches_s = sweep_s(BATCHES, path)
    points = 1_030_301
    return [
        Figure(name="sweep of 1,030,301 points over hardware, gpt-fast, to CSV", value=million_s, target=30, unit="s"),
        rate("the same", points / million_s),
        Figure(name="the same, largest process", value=peak_bytes / 1e6, target=2000, unit="MB"),
        rate("the same, vllm", points / flash_s),
        rate("a ninth of the points, gpt-fast", 112_211 / tenth_s, promised=None),
        Figure(name="sweep over 256 batches, vllm", value=batches_s, target=None, unit="s"),
        layers(),
    ]


def rate(name: str, per_s: float, promised: float | None = 50_000) -> Figure:
    return Figure(name=name, value=per_s, target=promised, unit="/s", more_is_better=True)


def sweep_s(axes: dict[str, str], path: Path) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        quietly([sys.executable, "-c", _CODE.format(axes=axes, path=str(path))])
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def layers() -> Figure:
    """Cost of ten times as many identical layers."""
    from ladder_sim.sweeps.run import sweep

    few, many = ({**HARDWARE, "gpu.hbm_bandwidth": "2TB/s", "model.layers": count} for count in (80, 800))
    few_s, many_s = (median_s(lambda: sweep(axes, ignore_memory=True), 5) for axes in (few, many))  # noqa: B023
    ratio = many_s / few_s
    return Figure(name="time of 800 layers over that of 80", value=ratio, target=1.2, unit="")


if __name__ == "__main__":
    sys.exit(main())
