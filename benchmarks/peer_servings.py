"""Errors of the time per token of measured servings, ours and aiconfigurator's, as a Markdown table.

    python benchmarks/peer_servings.py serving_dense.csv [--folder FOLDER]

aiconfigurator-core is installed from the package index into an environment of its own, unless the folder has it
already, and its file of measured servings is deleted there: it holds rows that are reserved for blind checks. It is
called for a step of ``ctx_tokens`` prompt tokens next to the decode batch, once with one prompt and once with as many
as 8192 tokens hold; fp8 once as its raw tables have it, quantised at run time, and once static. Its best counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from pathlib import Path

import numpy as np

from ladder_sim.validation.dataset import read_table
from ladder_sim.validation.serving import ErrorSummary, ServingComparison, compare_servings
from ladder_sim.validation.serving_table import read_servings

REQUIREMENT = "aiconfigurator-core==0.12.0"
_SAMPLE = "aiconfigurator_core/systems/silicon_sample.csv"
# its names: catalog ids of models, and of precisions, with what it takes for the KV cache and attention
_MODELS = {"qwen3-32b": "Qwen/Qwen3-32B", "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B"}
_MODES = {
    "bf16": [("bfloat16", "bfloat16")],
    "fp8": [("fp8", "fp8"), ("fp8_static", "fp8")],
    "fp8-block": [("fp8_block", "bfloat16")],
}
_PEER = """
import json, logging, sys, warnings
from functools import cache
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from aiconfigurator_core.sdk import common, config
from aiconfigurator_core.sdk.backends.factory import get_backend
from aiconfigurator_core.sdk.models import get_model
from aiconfigurator_core.sdk.perf_database import get_database
database = cache(lambda system, backend: get_database(system, backend, "current"))
@cache
def model(path, tp, gemm, rest, backend):
    modes = dict(gemm_quant_mode=common.GEMMQuantMode[gemm], kvcache_quant_mode=common.KVCacheQuantMode[rest],
                 fmha_quant_mode=common.FMHAQuantMode[rest])
    sizes = dict(tp_size=tp, pp_size=1, attention_dp_size=1, moe_tp_size=tp, moe_ep_size=1)
    return get_model(path, config.ModelConfig(**sizes, **modes), backend)
def tpot_ms(path, system, backend, tp, gemm, rest, concurrency, isl, osl, ctx_tokens):
    load = config.RuntimeConfig(batch_size=concurrency, isl=isl, osl=osl)
    # a backend remembers steps whatever the model
    summary = get_backend(backend).run_agg(model(path, tp, gemm, rest, backend), database(system, backend), load,
                                           ctx_tokens=ctx_tokens)
    return float(summary.get_summary_df().iloc[0]["tpot"])
print("\\n" + json.dumps([tpot_ms(*call) for call in json.load(sys.stdin)]))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Errors of TPOT of measured servings, ours and aiconfigurator's.")
    parser.add_argument("servings", help="CSV file of servings (docs/serving.md)")
    parser.add_argument("--folder", type=Path, help="keep its environment here; by default a temporary folder")
    arguments = parser.parse_args()
    content, name = read_table(arguments.servings)
    compared = compare_servings(read_servings(content, name))
    with tempfile.TemporaryDirectory() as temporary:
        errors = peer_errors(compared, interpreter(arguments.folder or Path(temporary)))
    print("\n".join(lines(compared, errors)))
    return 0


def interpreter(folder: Path) -> Path:
    """A Python with aiconfigurator-core and without its measured servings."""
    home = folder / REQUIREMENT.replace("==", "-")
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", REQUIREMENT]
        subprocess.run(pip, check=True)
        for sample in home.glob(f"lib/*/site-packages/{_SAMPLE}"):
            sample.unlink()
    return python


def peer_errors(compared: tuple[ServingComparison, ...], python: Path) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Relative errors by engine and precision, and by how the peer is called."""
    calls, settings = [], []
    for each in compared:
        serving, setup = each.serving, each.serving.setup
        for gemm, rest in _MODES[setup.dtype]:
            prompts = {"one prompt": 1, "8192 tokens": max(8192 // serving.prompt, 1)}
            for chunk, count in prompts.items():
                where = (_MODELS[setup.model], setup.cluster.replace("-", "_"), setup.engine, setup.plan.tp, gemm, rest)
                calls.append((*where, serving.concurrency, serving.prompt, serving.gen, count * serving.prompt))
                settings.append(((setup.engine, setup.dtype), f"{gemm}, {chunk}", serving.tpot_s))
    done = subprocess.run([python, "-c", _PEER], input=json.dumps(calls), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    errors: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (group, setting, measured_s), tpot_ms in zip(settings, json.loads(done.stdout.splitlines()[-1]), strict=True):
        errors[group][setting].append(1e-3 * tpot_ms / measured_s - 1.0)
    return errors


def lines(compared: tuple[ServingComparison, ...], errors: dict[tuple[str, str], dict[str, list[float]]]) -> list[str]:
    """A row for each engine and precision, and each setting of the peer; mean and median absolute errors."""
    rows = ["| engine | rows | here | aiconfigurator 0.12 |", "|---|---|---|---|"]
    for group, by_setting in errors.items():
        own = [each.tpot for each in compared if (each.serving.setup.engine, each.serving.setup.dtype) == group]
        summary = ErrorSummary.of(own)
        if summary is None:
            continue
        here = f"{summary.mean_abs_error:.1%}, {summary.median_abs_error:.1%}"
        theirs = "; ".join(
            f"{setting}: {np.mean(np.abs(column)):.1%}, {np.median(np.abs(column)):.1%}"
            for setting, column in by_setting.items()
        )
        rows.append(f"| {', '.join(group)} | {len(own)} | {here} | {theirs} |")
    return rows


if __name__ == "__main__":
    sys.exit(main())
