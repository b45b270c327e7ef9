"""How fast the simulator answers, compared with its targets.

Cold figures and sweeps are medians over fresh processes, so they include the start of the interpreter. Timings depend
on the machine and on its load, so a figure that misses its target is marked and does not fail::

    python -m benchmarks.speed [--no-sweeps]
"""

import argparse
import dataclasses
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.pages import DOCS, table

COLD_RUNS, WARM_RUNS, SWEEP_RUNS = 7, 41, 3
# kinds of hardware in one batch
CONFIGURATIONS = 32_768
EVERY_LAYER = 10**6
HARDWARE = "--model 70b --tp 8 --set intra.bandwidth=50:900:+8.5GB/s --set intra.allreduce_floor=2:40:+0.38us"
FINE, COARSE = "--set gpu.hbm_bandwidth=2:8:+0.06TB/s", "--set gpu.hbm_bandwidth=2:8:+0.6TB/s"
SIZES = "--model 70b --tp 8 --stack vllm --prompt 16:4096:+16 --gen 64:1024:x2"
INTERVALS = (
    "--model 70b --tp 8 --set intra.bandwidth=50:900:+27GB/s --set intra.allreduce_floor=2:40:+1.2us "
    "--set gpu.hbm_bandwidth=2:8:+0.2TB/s --set intervals=true"
)
# what the CPU time of a command in a fresh process is compared with, and the most of it that a command may take
LIBRARIES = "import numpy, scipy.special, networkx, simpy"
STARTS = (
    ("versus --model 70b --stack vllm --concurrency 64", 2.0),
    ("advise --model 70b --stack vllm --concurrency 64", 2.0),
    ("--help", 0.3),
)
EXPERTS = "--model deepseek-v3 --cluster h200-sxm"
# rows, their points, what is swept, and how many points a second are asked for
SWEEPS: tuple[tuple[str, int, str, float | None], ...] = (
    ("1,030,301 kinds of hardware, 70B TP 8, gpt-fast", 1_030_301, f"{HARDWARE} {FINE}", 50_000),
    ("the same, vllm", 1_030_301, f"{HARDWARE} {FINE} --stack vllm", 50_000),
    ("a ninth of the points, gpt-fast", 112_211, f"{HARDWARE} {COARSE}", None),
    ("the same with 800 layers", 112_211, f"{HARDWARE} {COARSE} --set model.layers=800", None),
    ("163,840 batches, prompts and answers, 70B TP 8, vllm", 163_840, f"{SIZES} --batch 1:128:+1", None),
    (
        "163,840 requests in flight, prompts and answers, 70B TP 8, vllm",
        163_840,
        f"{SIZES} --concurrency 1:128:+1",
        50_000,
    ),
    ("33,759 kinds of hardware with intervals, 70B TP 8, vllm", 33_759, f"{INTERVALS} --stack vllm", 20_000),
    ("33,759 kinds of hardware with intervals, 70B TP 8, gpt-fast", 33_759, INTERVALS, None),
    (
        "106,641 kinds of hardware, DeepSeek-V3 TP 8, vllm",
        106_641,
        f"{EXPERTS} --stack vllm --set intra.bandwidth=50:900:+17GB/s --set intra.allreduce_floor=2:40:+0.76us "
        "--set gpu.hbm_bandwidth=2:8:+0.15TB/s",
        40_000,
    ),
    (
        "384 models and TP degrees, a graph for each",
        384,
        "--model 8b,llama-2-13b,70b --tp 1:8 --stack vllm,trtllm --set model.layers=20:80:+4",
        None,
    ),
    (
        "384 plans of DeepSeek-V3 on up to 128 GPUs",
        384,
        f"{EXPERTS} --stack vllm,trtllm,sglang --nodes 16 --tp 8,16 --attention-dp 1,2 --ep 1,2,4,8 --pp 1,2 --dp 1,2 "
        "--batch 64 --set kv_dtype=bf16,fp8",
        None,
    ),
)


class Figure(NamedTuple):
    """One measurement and its target, in the same unit."""

    name: str
    """What was measured."""
    value: float
    """Median, or peak for memory."""
    unit: str
    """Of value and target; rates end in "/s"."""
    target: float | None = None
    """Lower limit of a rate, upper limit of all else; None: for comparison only."""

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table's row."""
        if self.target is None:
            return self.name, f"{_shown(self.value)} {self.unit}", "", ""
        rate = self.unit.endswith("/s")
        met = self.value >= self.target if rate else self.value <= self.target
        limit = f"{'at least' if rate else 'at most'} {_shown(self.target)}"
        return self.name, f"{_shown(self.value)} {self.unit}", limit, "met" if met else "MISSED"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-sweeps", action="store_true", help="leave the sweeps out, which take minutes")
    options = parser.parse_args()
    # a child's peak memory counts from what its parent had at the fork, so this process imports the package last
    figures = [*cold(), *starts()]
    sweeps = [] if options.no_sweeps else [*swept()]
    figures += [*warm(), *estimates(), *sized(), *own_graphs(), *ratios(), *batches(), *passes(), *served(), *queried()]
    tables = [table(("what", "measured", "target", ""), (row.cells() for row in rows)) for rows in (figures, sweeps)]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {time.strftime('%F')}\n")
    print("\n".join(tables))
    return 0


def medians_ms(*calls: Callable[[int], object], runs: int = WARM_RUNS) -> list[float]:
    """Return the median milliseconds of each call, which gets the number of its run; the first run is left out.

    Calls take turns, so that load on the machine slows all equally.
    """
    rows = []
    for number in range(runs + 1):
        row = []
        for call in calls:
            begin_s = time.perf_counter()
            call(number)
            row.append(1e3 * (time.perf_counter() - begin_s))
        rows.append(row)
    return [statistics.median(column) for column in zip(*rows[1:], strict=True)]


def _run(arguments: str, runs: int, command: str = "-m ladder_sim") -> float:
    """Return the median seconds of a fresh process."""

    def call(number: int) -> None:
        started = [sys.executable, *shlex.split(command), *shlex.split(arguments)]
        subprocess.run(started, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    (spent_ms,) = medians_ms(call, runs=runs)
    return 1e-3 * spent_ms


def _peak_mb() -> float:
    """Of the largest process so far that this one has started."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1e-6 if sys.platform == "darwin" else 1.024e-3)


def swept() -> Iterator[Figure]:
    """Every sweep starts in a fresh process, with two workers, and writes a file."""
    with tempfile.TemporaryDirectory() as folder:
        how = f"--set ignore_memory=true --workers 2 --save {shlex.quote(str(Path(folder, 'sweep.csv')))}"
        for name, points, axes, minimum in SWEEPS:
            yield Figure(name, points / _run(f"sweep {axes} {how}", SWEEP_RUNS), "/s", minimum)
    yield Figure("largest process of all these", _peak_mb(), "MB", 2000)


def cold() -> Iterator[Figure]:
    yield Figure("import ladder_sim", 1e3 * _run("'import ladder_sim'", COLD_RUNS, "-c"), "ms", 300)
    command = "predict --model 405b --nodes 2"
    yield Figure(f"{command}, fresh process", 1e3 * _run(command, COLD_RUNS), "ms", 1500)
    yield Figure("the largest process so far, peak memory", _peak_mb(), "MB", 300)
    name = "advise over 1,245 plans of Qwen3-235B on 128 GPUs, a thousand of them"
    advise_s = _run("advise --model qwen3-235b-a22b --gpus 128 --concurrency 256", 1)
    yield Figure(name, advise_s / 1.245, "s", 10)


def starts() -> Iterator[Figure]:
    """CPU time of commands in fresh processes, in multiples of that of `LIBRARIES`; the first run is left out."""
    python = [sys.executable, "-c", LIBRARIES]
    commands = {LIBRARIES: python} | {name: [sys.executable, "-m", "ladder_sim", *name.split()] for name, _ in STARTS}
    spent_s: dict[str, list[float]] = {name: [] for name in commands}
    # in turns, so that load on the machine slows all equally
    for _ in range(COLD_RUNS + 1):
        for name, command in commands.items():
            before_s = _children_s()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            spent_s[name].append(_children_s() - before_s)
    median_s = {name: statistics.median(row[1:]) for name, row in spent_s.items()}
    for name, most in STARTS:
        yield Figure(f"CPU time of {name} over that of {LIBRARIES}", median_s[name] / median_s[LIBRARIES], "", most)


def _children_s() -> float:
    """CPU seconds of all processes that this one has started and that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def predicting(
    *,
    each: Callable[[int], Mapping[str, str]] | None = None,
    then: Callable[[Any], object] | None = None,
    engine: Any = "fast",
    **fields: Any,
) -> Callable[[int], object]:
    """Return a prediction of four variants, in each run of other figures: by default of another bandwidth."""
    from ladder_sim import Scenario, predict

    link = "inter" if "nodes" in fields else "intra"
    other = each or (lambda number: {f"{link}.bandwidth": f"{40 + number / 4} GB/s"})
    fixed = fields.pop("overrides", {})
    scenarios = [Scenario(**fields, overrides={**fixed, **other(number)}) for number in range(WARM_RUNS + 1)]

    def call(number: int) -> None:
        predictions = predict(scenarios[number], engine=engine, ignore_memory=True)
        if then:
            for prediction in predictions.values():
                then(prediction)

    return call


def _comparing(number: int) -> None:
    """Compare all options, in each run at another bandwidth."""
    from ladder_sim import Scenario, versus

    bandwidth = {"intra.bandwidth": f"{400 + number} GB/s"}
    versus(Scenario(model="70b", stack="vllm", concurrency=64, overrides=bandwidth))


def warm() -> Iterator[Figure]:
    def read(prediction: Any) -> None:
        _ = prediction.breakdown, prediction.confidence.measured_fraction, prediction.confidence.warnings

    two_nodes = {"model": "405b", "nodes": 2, "stack": "gpt-fast"}
    for name, target, call in (
        ("predict() of four variants, warm, 405b on two nodes, gpt-fast", 2, predicting(**two_nodes)),
        ("the same, and every breakdown read", None, predicting(**two_nodes, then=read)),
        ("the same, and every interval", None, predicting(**two_nodes, then=lambda prediction: prediction.speedup)),
        ("predict() of the same, vllm", None, predicting(**{**two_nodes, "stack": "vllm"})),
        ("predict() of the same, gpt-fast, engine des", 200, predicting(**two_nodes, engine="des")),
        ("versus() of 70b on 8 GPUs, vllm, 64 requests in flight", 150, _comparing),
        ("predict() of DeepSeek-V3 on 16 GPUs, vllm", 6, predicting(model="deepseek-v3", nodes=2, stack="vllm")),
        *(
            (
                f"predict() of 64 requests in flight, 70b on 8 GPUs, {stack}",
                3,
                predicting(model="70b", stack=stack, concurrency=64),
            )
            for stack in ("vllm", "trtllm", "sglang")
        ),
    ):
        yield Figure(name, *medians_ms(call), "ms", target)


def estimates() -> Iterator[Figure]:
    """CPU time of predictions and comparisons in loops over the number of requests, which no run asks for twice."""
    from ladder_sim import Scenario, predict, versus

    configs = json.loads((DOCS.parent / "tests" / "data" / "decoder_configs.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        qwen = Path(folder, "config.json")
        qwen.write_text(json.dumps(configs["qwen3_5_moe"]["config"]), "utf-8")
        many: Any = {"model": str(qwen), "cluster": "h200-sxm"}
        for name, target, call in (
            ("one wiring, 70b", 1.5, lambda number: predict(None, ["ladder"], model="70b", batch=1 + number)),
            ("four variants of Qwen3.5-397B", 7, lambda number: predict(**many, batch=1 + number)),
            (
                "four variants of 70b, so many requests in flight, vllm",
                3,
                lambda number: predict(model="70b", stack="vllm", concurrency=32 + number),
            ),
            ("versus() of 70b", 150, lambda number: versus(model="70b", batch=1 + number)),
            ("versus() of 405b on two nodes", 150, lambda number: versus(model="405b", nodes=2, batch=1 + number)),
            (
                "versus() of 70b, so many requests in flight, vllm",
                150,
                lambda number: versus(Scenario(model="70b", stack="vllm", concurrency=32 + number)),
            ),
        ):
            runs = COLD_RUNS if name.startswith("versus") else WARM_RUNS
            yield Figure(f"CPU time, warm, another load each time: {name}", 1e3 * _cpu_s(call, runs), "ms", target)


def sized() -> Iterator[Figure]:
    """CPU time of `capacity` on 16 GPUs, and until it says what predictions alone say; each model once."""
    from ladder_sim import capacity

    slo = "ttft_p95=2s,tpot_p95=50ms"
    for model, cluster in (("deepseek-v3", "h200-sxm"), ("405b", "h100-sxm"), ("70b", "h100-sxm")):
        begin_s, said_s = time.process_time(), [0.0]

        def say(text: str, said_s: list[float] = said_s) -> None:
            said_s[0] = time.process_time()

        capacity(model=model, cluster=cluster, nodes=2, stack="vllm", rate=10.0, slo=slo, say=say)
        yield Figure(f"CPU time of capacity() of {model}, 16 GPUs", time.process_time() - begin_s, "s", 20)
        yield Figure("of these until its first answer", said_s[0] - begin_s, "s", 2)


def own_graphs() -> Iterator[Figure]:
    """Yield what kernels or a graph of its own add to a point's warm prediction."""
    from ladder_sim.specs import catalog

    def larger(model: str, field: str, step: int) -> Callable[[int], dict[str, str]]:
        size = getattr(catalog.model(model), field)
        return lambda number: {f"model.{field}": str(size + step * (number + 1))}

    for model in ("405b", "deepseek-v3"):
        fields = {"model": model, "nodes": 2, "tp": 16, "stack": "vllm"}
        others = (None, larger(model, "vocab", 1024), larger(model, "layers", 1))
        warm_ms, *others_ms = medians_ms(*(predicting(each=each, **fields) for each in others))
        for what, own_ms, target in zip(("kernels", "layers"), others_ms, (2, None), strict=True):
            name = f"what {what} of its own add to predict() of {model} on 16 GPUs, vllm"
            yield Figure(name, own_ms - warm_ms, "ms", target)


def ratios() -> Iterator[Figure]:
    """Yield what more layers, ranks, decode steps and techniques cost a prediction."""
    wide = {"cluster": "gb200-nvl72", "model": "405b", "stack": "vllm", "tp": 8}
    few_layers, many_layers = ({"overrides": {"model.layers": str(count)}} for count in (126, 1260))
    cases = [
        ("time of a prediction of 1260 layers over that of 126", 1.2, {**wide, **few_layers}, {**wide, **many_layers}),
        ("time of TP 64 over that of TP 8", 1.2, wide, {**wide, "tp": 64}),
        ("time of 8192 new tokens over that of 512", None, wide, {**wide, "gen": 8192}),
    ]
    for what, fields in (
        ("70b", {"model": "70b"}),
        ("64 requests in flight, vllm", {"model": "70b", "concurrency": 64}),
        ("a prefill, vllm", {"model": "70b", "stack": "vllm", "gen": 1}),
    ):
        for technique in ("token-split", "fused-norm+token-split"):
            name = f"time of a prediction with {technique} over one without, {what}"
            cases.append((name, 1.5, fields, {**fields, "technique": technique}))
    for name, most, few, many in cases:
        few_ms, many_ms = medians_ms(predicting(**few), predicting(**many))
        yield Figure(name, many_ms / few_ms, "", most)


def batches() -> Iterator[Figure]:
    """Full requests (prefill and decode over context, four variants counted as one) on many kinds of hardware."""
    import numpy as np

    from ladder_sim import Scenario
    from ladder_sim.closed_loop.step import simulate_requests
    from ladder_sim.costs.profile_file import load_profile
    from ladder_sim.des.program import Program
    from ladder_sim.simulate import passes
    from ladder_sim.simulate.lower import lower
    from ladder_sim.wirings.names import DEFAULT_VARIANTS

    random = np.random.default_rng(0)
    figures = {
        "intra.bandwidth_Bps": random.uniform(50e9, 900e9, CONFIGURATIONS),
        "intra.allreduce_floor_s": random.uniform(2e-6, 40e-6, CONFIGURATIONS),
        "gpu.hbm_bandwidth_Bps": random.uniform(1e12, 8e12, CONFIGURATIONS),
        "gpu.bf16_flops": random.uniform(2e14, 2e15, CONFIGURATIONS),
    }
    profile = load_profile("h100-sxm")

    def alone(*arguments: Any) -> Program:
        """Return a pass whose kernels and collectives do not slow each other."""
        return dataclasses.replace(lower(*arguments), device=None)

    for stack in ("gpt-fast", "vllm"):
        scenario = Scenario(model="70b", tp=8, stack=stack)
        name = f"requests in a batch of {CONFIGURATIONS:,} kinds of hardware, 70B TP 8, {stack}, one process"
        for what, lowered, minimum in ((name, lower, 50_000), ("the same, nothing shared", alone, 100_000)):
            with mock.patch.object(passes, "lower", lowered):
                (spent_ms,) = medians_ms(
                    lambda _: simulate_requests(scenario, figures, DEFAULT_VARIANTS, profile),  # noqa: B023
                    runs=COLD_RUNS,
                )
            yield Figure(what, 1e3 * CONFIGURATIONS / spent_ms, "/s", minimum)


def passes() -> Iterator[Figure]:
    """Every layer of 405B's ladder, by both engines."""
    from ladder_sim import Scenario
    from ladder_sim.costs.kernels import KernelCosts
    from ladder_sim.costs.profile_file import load_profile
    from ladder_sim.des import engine, scan
    from ladder_sim.simulate.passes import simulate

    scenario = Scenario(model="405b", nodes=2, variant="ladder")
    _, program = simulate(scenario, "decode", 1025, KernelCosts(scenario, load_profile("h100-sxm"))).lowered(
        EVERY_LAYER
    )
    alone = dataclasses.replace(program, device=None)
    for name, call in (
        ("engine des, nothing shared", lambda _: engine.run(alone)),
        ("engine des, GPU shared", lambda _: engine.run(program)),
        ("engine fast, GPU shared", lambda _: scan.run(program)),
    ):
        yield Figure(f"one pass over all its 126 layers, {name}", *medians_ms(call), "ms")


def served() -> Iterator[Figure]:
    """Yield how fast one replica of 70B serves requests, one by one, with steps that are known."""
    from ladder_sim import Scenario
    from ladder_sim.serving import Lengths, Service, Traffic

    for rate, minimum in ((1.0, None), (4.0, None), (10.0, 10_000), (40.0, None)):
        load = Traffic(rate=rate, prompt=Lengths.parse("1024"), gen=Lengths.parse("256"), requests=1000)
        service = Service.for_requests(Scenario(model="70b", tp=8, stack="vllm"), load)
        spent_s = _cpu_s(lambda _: service.run("standard", load))  # noqa: B023
        yield Figure(f"requests served in a CPU second, 70B TP 8, {rate:g} requests/s", 1000 / spent_s, "/s", minimum)


def _cpu_s(call: Callable[[int], object], runs: int = COLD_RUNS) -> float:
    """Return the median CPU seconds of a call, which gets the number of its run; the first run is left out."""
    spent_s = []
    for number in range(runs + 1):
        begin_s = time.process_time()
        call(number)
        spent_s.append(time.process_time() - begin_s)
    return statistics.median(spent_s[1:])


def queried() -> Iterator[Figure]:
    """Yield what a simulator's query of a step takes."""
    from ladder_sim import Scenario
    from ladder_sim.serving import Mix, StepTimes

    times = StepTimes.of(Scenario(model="70b", tp=8, stack="vllm"), "ladder")
    decode, mixed = Mix.of(decode=[1024] * 64), Mix.of(decode=[1024] * 64, prefill=[(512, 0), (300, 700)])
    for name, call in (
        ("StepTimes.of_mix, 64 requests decode", lambda: times.of_mix(decode)),
        ("StepTimes.of_mix, with two chunks of prompts", lambda: times.of_mix(mixed)),
        ("StepTimes.seconds, 64 requests decode", lambda: times.seconds(decode=[1024] * 64)),
    ):
        spent_s = _cpu_s(lambda _: [call() for _ in range(10_000)])  # noqa: B023
        yield Figure(name, 100 * spent_s, "us", 5.0)


if __name__ == "__main__":
    sys.exit(main())
