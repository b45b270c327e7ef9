"""Predictions per second, compared with other simulators in one run: Llama 3.1 70B, TP 8, one H100 node, batch 1 to 64.

Each peer is installed from the package index into an environment of its own, unless the folder has it already. Its own
Python interface is called for prefill and decode, in a process that runs on one core::

    python benchmarks/peers.py [--folder FOLDER] [--json]

All sweep the same requests: every batch from 1 to 64 with prompts of 8 to 4096 tokens, 512 new tokens each. The
answers differ: llm-analysis and GenZ are rooflines, aiconfigurator interpolates measured tables, and none of them
simulates streams, overlap or variants. ladder-sim's rate counts four variants as one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

WARM_S = 3.0
REPO = Path(__file__).resolve().parents[1]
# the peer that models tensor-parallel all-reduces with measured tables
NEAREST = "aiconfigurator"

_MEASURE = """
import json, logging, random, resource, sys, time, warnings
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
{setup}
one(1, 1024)
if sys.argv[1] == "warm":
    points = [(batch, prompt) for batch in range(1, 65) for prompt in range(8, 4097, 8)]
    # a slow simulator answers some of each size in the time it has
    random.Random(0).shuffle(points)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < {seconds}:
        count += sweep(points, start + {seconds})
    rate = count / (time.perf_counter() - start)
    print("\\n" + json.dumps([rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""
_ONE_BY_ONE = """
def sweep(points, until):
    for number, (batch, prompt) in enumerate(points):
        if time.perf_counter() > until:
            return number
        one(batch, prompt)
    return len(points)
"""

_LLM_ANALYSIS = """
from llm_analysis.analysis import LLMAnalysis, get_dtype_config_by_name, get_gpu_config_by_name
from llm_analysis.config import ModelConfig, ParallelismConfig
model = ModelConfig(name="llama-3.1-70b", num_layers=80, n_head=64, hidden_dim=8192, vocab_size=128256,
                    max_seq_len=131072, num_key_value_heads=8, expansion_ratio=3.5, model_type="llama")
analysis = LLMAnalysis(model, get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"),
                       ParallelismConfig(tp_size=8))
def one(batch, prompt):
    analysis.inference(batch_size_per_gpu=batch, seq_len=prompt, num_tokens_to_generate=512)
"""
_GENZ = """
from GenZ import decode_moddeling, prefill_moddeling
system = {"Flops": 989, "Memory_size": 80, "Memory_BW": 3350, "ICN": 450, "real_values": True}
common = dict(model="meta-llama/Llama-3.1-70B", system_name=system, bits="bf16", tensor_parallel=8)
def one(batch, prompt):
    prefill_moddeling(batch_size=batch, input_tokens=prompt, **common)
    decode_moddeling(batch_size=batch, input_tokens=prompt, Bb=1, output_tokens=512, **common)
"""
_AICONFIGURATOR_CALL = """
from aiconfigurator.cli.api import cli_estimate
def one(batch, prompt):
    cli_estimate("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", mode="static", isl=prompt, osl=512, batch_size=batch,
                 tp_size=8)
"""
_AICONFIGURATOR_ENGINE = """
from aiconfigurator_core.sdk.engine import EngineHandle
engine = EngineHandle.compile("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "trtllm", tp_size=8)
def one(batch, prompt):
    engine.run_static(batch_size=batch, isl=prompt, osl=512)
"""
_AICONFIGURATOR_SESSION = """
from aiconfigurator.sdk import common, config, models, perf_database
from aiconfigurator.sdk.backends.factory import get_backend
from aiconfigurator.sdk.inference_session import InferenceSession
bf16 = dict(gemm_quant_mode=common.GEMMQuantMode.bfloat16, kvcache_quant_mode=common.KVCacheQuantMode.bfloat16,
            fmha_quant_mode=common.FMHAQuantMode.bfloat16)
model = models.get_model("meta-llama/Meta-Llama-3.1-70B",
                         config.ModelConfig(tp_size=8, moe_tp_size=1, moe_ep_size=8, **bf16), "trtllm")
version = perf_database.get_latest_database_version("h100_sxm", "trtllm")
session = InferenceSession(model, perf_database.get_database("h100_sxm", "trtllm", version), get_backend("trtllm"))
def one(batch, prompt):
    session.run_static(config.RuntimeConfig(batch_size=batch, isl=prompt, osl=512), mode="static")
"""
_PREDICT = """
from ladder_sim import Scenario, predict
def one(batch, prompt):
    predict(Scenario.of(model="70b", tp=8, batch=batch, prompt=prompt, stack="trtllm"))
"""
_SWEEP = """
from ladder_sim.sweeps.run import sweep as sweep_all
def one(batch, prompt):
    sweep_all({"model": "70b", "tp": 8, "batch": batch, "prompt": prompt, "stack": "trtllm"}, VARIANTS)
def sweep(points, until):
    return int(sweep_all({"model": "70b", "tp": 8, "stack": "trtllm", AXES}, VARIANTS).feasible.sum())
"""
_SIZES = '"batch": range(1, 65), "prompt": range(8, 4097, 8)'
_HARDWARE = '"batch": 16, "intra.bandwidth": "50:900:+5GB/s", "intra.allreduce_floor": "2:40:+0.2us"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A simulator and how it is called."""

    name: str
    requirement: str
    """For pip; empty: this project, from its own environment."""
    setup: str
    """Defines `one(batch, prompt)`, and `sweep(points, until)`, which returns the number of points answered."""


def _swept(axes: str, variants: Sequence[str] | None = None) -> str:
    return _SWEEP.replace("AXES", axes).replace("VARIANTS", repr(variants))


SWEPT = Peer(name="ladder-sim, `sweep` over the same requests", requirement="", setup=_swept(_SIZES))
SWEPT_STANDARD = Peer(name="ladder-sim, the same of standard alone", requirement="", setup=_swept(_SIZES, ["standard"]))
PEERS = (
    Peer(
        name="llm-analysis 0.2.2, `LLMAnalysis.inference`",
        requirement="llm-analysis==0.2.2",
        setup=_LLM_ANALYSIS + _ONE_BY_ONE,
    ),
    Peer(
        name="GenZ 0.0.16, `prefill_moddeling` and `decode_moddeling`",
        requirement="genz-llm==0.0.16",
        setup=_GENZ + _ONE_BY_ONE,
    ),
    Peer(
        name="aiconfigurator 0.12.0, `cli_estimate`",
        requirement="aiconfigurator==0.12.0",
        setup=_AICONFIGURATOR_CALL + _ONE_BY_ONE,
    ),
    Peer(
        name="aiconfigurator 0.12.0, `InferenceSession.run_static`",
        requirement="aiconfigurator==0.12.0",
        setup=_AICONFIGURATOR_SESSION + _ONE_BY_ONE,
    ),
    Peer(
        name="aiconfigurator 0.12.0, `run_static` of its compiled engine",
        requirement="aiconfigurator==0.12.0",
        setup=_AICONFIGURATOR_ENGINE + _ONE_BY_ONE,
    ),
    Peer(name="ladder-sim, `predict`, one by one", requirement="", setup=_PREDICT + _ONE_BY_ONE),
    SWEPT,
    SWEPT_STANDARD,
    Peer(name="ladder-sim, `sweep` over links of other figures", requirement="", setup=_swept(_HARDWARE)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One simulator's speed, on one core."""

    name: str
    cold_s: float
    """A fresh process with one prediction."""
    per_s: float
    """Predictions in a warm process."""
    peak_bytes: float
    """Memory of it."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Predictions per second, compared with other simulators.")
    parser.add_argument("--folder", type=Path, help="keep the peers' environments here; by default a temporary folder")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        speeds = measure_all(arguments.folder or Path(temporary))
    print(json.dumps([asdict(speed) for speed in speeds], indent=1) if arguments.json else "\n".join(section(speeds)))
    return 0


def measure_all(folder: Path) -> list[Measured]:
    """Every simulator in turn; environments that the folder lacks are made there."""
    return [measure(peer, interpreter(peer, folder)) for peer in PEERS]


# an hour at 10 requests/s in 4.5 to 6.0 s of CPU time, with other work on the machine
_UNDER_LOAD = (
    "",
    "Under load: `ladder-sim serve` simulates 6,000 to 8,000 requests a second on one core (70B at TP 8, an hour at",
    "10 requests/s: 35,833 requests of 1,024 + 256 tokens, half of it either way). Vidur 0.0.26 (MIT) installs from",
    "the package index, but without the measured kernels that it predicts from, so it could not be run next to this.",
    "Its paper (arXiv 2405.05465) gives no rate of requests: its search for the best deployment of Llama 2 70B takes",
    "an hour on a machine of CPUs. LLMServingSim is not in the index, and we know of no published rate of requests.",
)


def section(speeds: Sequence[Measured]) -> list[str]:
    """Lines of a Markdown table, and what follows from it."""
    if not speeds:
        return [
            "Not measured in this run: `python benchmarks/peers.py --folder FOLDER` installs the other simulators, and",
            "`--peers FOLDER` takes them into this page.",
            *_UNDER_LOAD,
        ]
    rows = [
        f"| {speed.name} | {speed.cold_s:.2f} s | {speed.per_s:,.{0 if speed.per_s >= 100 else 1}f} "
        f"| {speed.peak_bytes / 1e6:.0f} MB |"
        for speed in speeds
    ]
    four, alone = (next(speed for speed in speeds if speed.name == peer.name) for peer in (SWEPT, SWEPT_STANDARD))
    ratios = [
        f"| {speed.name} | {_times(four, speed)} | {_times(alone, speed)} |"
        for speed in speeds
        if speed.name.startswith(NEAREST)
    ]
    return [
        "| simulator | fresh process | predictions/s, warm | memory |",
        "|---|---|---|---|",
        *rows,
        "",
        "Llama 3.1 70B at TP 8 on H100s: every batch from 1 to 64, prompts of 8 to 4096 tokens, 512 new tokens;",
        "each simulator in one process on one core. llm-analysis and GenZ are rooflines; aiconfigurator",
        "interpolates measured tables of kernels and all-reduces. None of them simulates streams, overlap or",
        "residual wirings, and none varies hardware within a call. ladder-sim's rates count four variants as",
        "one.",
        "",
        "Points per second of ladder-sim's sweep over those of each tool, for the same requests; the goal was 50x:",
        "",
        "| over | with four variants a point | with standard alone, the only wiring that the others model |",
        "|---|---|---|",
        *ratios,
        "",
        "We do not reach 50x its compiled engine: one of its points is a sum over the ops of one graph. One of",
        "ours is priced and simulated in numpy, in several decode contexts, for four wirings, one of them on",
        "two streams.",
        *_UNDER_LOAD,
    ]


def _times(ours: Measured, theirs: Measured) -> str:
    ratio = ours.per_s / theirs.per_s
    return f"{ratio:,.{0 if ratio >= 100 else 1}f}"


def interpreter(peer: Peer, folder: Path) -> str:
    """A Python that can import the peer."""
    if not peer.requirement:
        return sys.executable
    home = folder / peer.requirement.replace("==", "-")
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", peer.requirement]
        subprocess.run(pip, check=True)
    return str(python)


def measure(peer: Peer, python: str) -> Measured:
    code = _MEASURE.format(setup=peer.setup, seconds=WARM_S)
    # the first start reads files from the disk and compiles them
    run(python, code, "cold")
    start = time.perf_counter()
    run(python, code, "cold")
    cold_s = time.perf_counter() - start
    per_s, peak_bytes = json.loads(run(python, code, "warm").splitlines()[-1])
    return Measured(name=peer.name, cold_s=cold_s, per_s=per_s, peak_bytes=peak_bytes)


def run(python: str, code: str, kind: str) -> str:
    # one core for each: some peers start threads
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run([python, "-c", code, kind], capture_output=True, text=True, env=environment, cwd="/")
    if done.returncode:
        sys.exit(f"{kind} run failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
