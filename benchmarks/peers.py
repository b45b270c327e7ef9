"""Predictions per second beside other simulators, in one run: Llama 3.1 70B, TP 8, one H100 node, batch 1 to 64.

Each peer is installed from the package index into an environment of its own, unless the folder has it already, and is
asked through its own Python interface for prefill and decode of 1024 prompt and 512 new tokens::

    python benchmarks/peers.py [--folder FOLDER] [--json]

What is asked is the same; what is answered is not. llm-analysis and GenZ are rooflines, aiconfigurator interpolates
measured tables, and none of them simulates streams, overlap or variants. ladder-sim's rate counts four variants as one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

WARM_S = 3.0
BATCHES = (1, 2, 4, 8, 16, 32, 64)
REPO = Path(__file__).resolve().parents[1]

_MEASURE = """
import json, logging, resource, sys, time, warnings
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
{setup}
points = one(1)
if sys.argv[1] == "warm":
    for batch in {batches}:
        one(batch)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < {seconds}:
        for batch in {batches}:
            count += one(batch)
    rate = count / (time.perf_counter() - start)
    print("\\n" + json.dumps([rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""

_LLM_ANALYSIS = """
from llm_analysis.analysis import LLMAnalysis, get_dtype_config_by_name, get_gpu_config_by_name
from llm_analysis.config import ModelConfig, ParallelismConfig
model = ModelConfig(name="llama-3.1-70b", num_layers=80, n_head=64, hidden_dim=8192, vocab_size=128256,
                    max_seq_len=131072, num_key_value_heads=8, expansion_ratio=3.5, model_type="llama")
analysis = LLMAnalysis(model, get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"),
                       ParallelismConfig(tp_size=8))
def one(batch):
    analysis.inference(batch_size_per_gpu=batch, seq_len=1024, num_tokens_to_generate=512)
    return 1
"""
_GENZ = """
from GenZ import decode_moddeling, prefill_moddeling
system = {"Flops": 989, "Memory_size": 80, "Memory_BW": 3350, "ICN": 450, "real_values": True}
common = dict(model="meta-llama/Llama-3.1-70B", input_tokens=1024, system_name=system, bits="bf16", tensor_parallel=8)
def one(batch):
    prefill_moddeling(batch_size=batch, **common)
    decode_moddeling(batch_size=batch, Bb=1, output_tokens=512, **common)
    return 1
"""
_AICONFIGURATOR_CALL = """
from aiconfigurator.cli.api import cli_estimate
def one(batch):
    cli_estimate("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", mode="static", isl=1024, osl=512, batch_size=batch,
                 tp_size=8)
    return 1
"""
_AICONFIGURATOR_ENGINE = """
from aiconfigurator_core.sdk.engine import EngineHandle
engine = EngineHandle.compile("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "trtllm", tp_size=8)
def one(batch):
    engine.run_static(batch_size=batch, isl=1024, osl=512)
    return 1
"""
_PREDICT = """
from ladder_sim import Scenario, predict
def one(batch):
    predict(Scenario.of(model="70b", tp=8, batch=batch))
    return 1
"""
_SWEEP = """
from ladder_sim.sweeps.run import sweep
def one(batch):
    return len(sweep({"model": "70b", "tp": 8, "batch": batch, "intra.bandwidth": "50:900:+13.5GB/s",
                      "intra.latency": "2:40:+0.6us"}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A simulator and how it is asked."""

    name: str
    requirement: str
    # for pip; empty: this project, from its own environment
    setup: str
    # defines `one(batch)`, which returns how many points it answered


PEERS = (
    Peer(name="llm-analysis, LLMAnalysis.inference", requirement="llm-analysis==0.2.2", setup=_LLM_ANALYSIS),
    Peer(name="GenZ, prefill and decode_moddeling", requirement="genz-llm==0.0.16", setup=_GENZ),
    Peer(name="aiconfigurator, cli_estimate", requirement="aiconfigurator==0.12.0", setup=_AICONFIGURATOR_CALL),
    Peer(
        name="aiconfigurator, compiled engine's run_static",
        requirement="aiconfigurator==0.12.0",
        setup=_AICONFIGURATOR_ENGINE,
    ),
    Peer(name="ladder-sim, predict of four variants", requirement="", setup=_PREDICT),
    Peer(name="ladder-sim, sweep over hardware figures, four variants", requirement="", setup=_SWEEP),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One simulator's speed, on one core."""

    name: str
    cold_s: float
    # a fresh process with one prediction
    per_s: float
    # predictions in a warm process
    peak_bytes: float
    # memory of it


def main() -> int:
    parser = argparse.ArgumentParser(description="Predictions per second beside other simulators.")
    parser.add_argument("--folder", type=Path, help="keep the peers' environments here; by default a temporary folder")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        found = [measure(peer, interpreter(peer, folder)) for peer in PEERS]
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
        return 0
    print("| simulator | fresh process | predictions/s, warm | memory |\n|---|---|---|---|")
    for one in found:
        print(f"| {one.name} | {one.cold_s:.2f} s | {one.per_s:,.4g} | {one.peak_bytes / 1e6:.0f} MB |")
    return 0


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
    code = _MEASURE.format(setup=peer.setup, batches=BATCHES, seconds=WARM_S)
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
