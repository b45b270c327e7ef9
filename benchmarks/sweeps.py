"""How fast sweeps are, compared with their targets.

    python benchmarks/sweeps.py [--json]

Every sweep runs in a fresh process with two workers and writes a file; times include the start of all three.
"""

import argparse
import resource
import sys
import tempfile
from pathlib import Path

from figure import Figure, as_json, as_table, median_s, quietly, rate

RUNS = 3
# 1,030,301 points: every one a request (prefill and decode over context) of four variants
HARDWARE = {
    "model": "70b",
    "tp": "8",
    "intra.bandwidth": "50:900:+8.5GB/s",
    "intra.allreduce_floor": "2:40:+0.38us",
    "gpu.hbm_bandwidth": "2:8:+0.06TB/s",
}
# 112,211 points
TENTH = {**HARDWARE, "gpu.hbm_bandwidth": "2:8:+0.6TB/s"}
# 163,840 points of other batches, prompts and answers
SIZES = {"model": "70b", "tp": "8", "stack": "vllm", "batch": "1:128:+1", "prompt": "16:4096:+16", "gen": "64:1024:x2"}
# 163,840 points of other requests in flight
SERVED = {**{name: axis for name, axis in SIZES.items() if name != "batch"}, "concurrency": "1:128:+1"}
# 106,641 points
EXPERTS = {
    "model": "deepseek-v3",
    "cluster": "h200-sxm",
    "stack": "vllm",
    "intra.bandwidth": "50:900:+17GB/s",
    "intra.allreduce_floor": "2:40:+0.76us",
    "gpu.hbm_bandwidth": "2:8:+0.15TB/s",
}
# 384 plans, each with kernels of its own
PLANS = {
    **{name: EXPERTS[name] for name in ("model", "cluster")},
    "stack": "vllm,trtllm,sglang",
    "nodes": "16",
    "tp": "8,16",
    "attention_dp": "1,2",
    "ep": "1,2,4,8",
    "pp": "1,2",
    "dp": "1,2",
    "batch": "64",
    "kv_dtype": "bf16,fp8",
}
# 384 points with a graph each
GRAPHS = {"model": "8b,llama-2-13b,70b", "tp": "1:8", "stack": "vllm,trtllm", "model.layers": "20:80:+4"}

_CODE = """
from pathlib import Path
from ladder_sim.sweeps.executors import Processes
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import how_of, run_to_file
grid = Grid({axes!r})
run_to_file(grid, how_of(grid, None, True), Processes(2), Path({path!r}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure sweeps and compare them with their targets.")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    arguments = parser.parse_args()
    figures = measure()
    print(as_json(figures) if arguments.json else "\n".join(as_table(figures)))
    return 0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.csv"
        million_s, tenth_s = sweep_s(HARDWARE, path), sweep_s(TENTH, path)
        flash_s = sweep_s({**HARDWARE, "stack": "vllm"}, path)
        sizes_s, served_s, graphs_s = (sweep_s(axes, path) for axes in (SIZES, SERVED, GRAPHS))
        experts_s, plans_s = sweep_s(EXPERTS, path), sweep_s(PLANS, path)
        deep_s = sweep_s({**TENTH, "model.layers": "800"}, path)
        # a child's peak counts from what this process had at the fork: nothing of the package is imported here
        peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    points = 1_030_301
    return [
        Figure(name="1,030,301 kinds of hardware, 70B TP 8, gpt-fast", value=million_s, target=30, unit="s"),
        rate("the same", points / million_s, 50_000),
        rate("the same, vllm", points / flash_s, 50_000),
        rate("a ninth of the points, gpt-fast", 112_211 / tenth_s),
        Figure(name="time of the same for 800 layers over that for 80", value=deep_s / tenth_s, target=1.2, unit=""),
        rate("163,840 batches, prompts and answers, 70B TP 8, vllm", 163_840 / sizes_s),
        rate("163,840 requests in flight, prompts and answers, 70B TP 8, vllm", 163_840 / served_s, 50_000),
        rate("106,641 kinds of hardware, DeepSeek-V3 TP 8, vllm", 106_641 / experts_s, 40_000),
        rate("384 models and TP degrees, a graph for each", 384 / graphs_s),
        rate("384 plans of DeepSeek-V3 on up to 128 GPUs", 384 / plans_s),
        Figure(name="largest process of all these", value=peak_bytes / 1e6, target=2000, unit="MB"),
    ]


def sweep_s(axes: dict[str, str], path: Path) -> float:
    return median_s(lambda: quietly([sys.executable, "-c", _CODE.format(axes=axes, path=str(path))]), RUNS)


if __name__ == "__main__":
    sys.exit(main())
