"""Step times: error against steps simulated one by one, and what they cost.

For each plan and variant random steps of all sizes are looked up and simulated. CPU seconds to make the times, the size
of their file, and microseconds of CPU a call, the fastest of several tries. Exits 1 if an error is above 2 %::

    python benchmarks/step_times.py [--steps 2000] [PLAN...]
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ladder_sim import Scenario
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.prediction import resolve_profile
from ladder_sim.serve import StepLimits, StepTimes
from ladder_sim.serve.steps.cache import folder
from ladder_sim.serve.steps.mix import Mix
from ladder_sim.serve.steps.step_model import Mixes, StepModel

BOUND = 0.02
LIMITS = StepLimits(requests=256, tokens=8192, context=8192)
PLANS: Mapping[str, Mapping[str, Any]] = {
    "70b": {"model": "70b"},
    "8b-tp1": {"model": "8b", "tp": 1, "stack": "sglang"},
    "405b-2-nodes": {"model": "405b", "nodes": 2},
    "70b-pp2": {"model": "70b", "tp": 4, "pp": 2},
    "l40s-pcie": {"model": "70b", "cluster": "l40s-pcie"},
    "b200-trtllm-fp8": {"model": "70b", "cluster": "b200-sxm", "stack": "trtllm", "dtype": "fp8"},
    "gemma-3": {"model": "gemma-3-27b"},
    "qwen3-235b": {"model": "qwen3-235b-a22b"},
    "qwen3-30b-dp8-ep8": {"model": "qwen3-30b-a3b", "tp": 1, "attention_dp": 8, "ep": 8, "concurrency": 8},
    "deepseek-v3": {"model": "deepseek-v3", "cluster": "b200-sxm"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Accuracy and cost of step times.")
    parser.add_argument("--steps", type=int, default=2000, help="of each kind")
    parser.add_argument("plans", nargs="*", metavar="PLAN", help=", ".join(PLANS))
    arguments = parser.parse_args()
    worst = 0.0
    print(f"{'plan':18}{'variant':10}{'steps':8}{'median':>8}{'p95':>8}{'max':>8}{'made':>9}{'file':>9}{'call':>9}")
    for name, variant in itertools.product(arguments.plans or PLANS, ("standard", "ladder")):
        scenario = Scenario.of(**{"stack": "vllm", **PLANS[name]})
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            start_s = time.process_time()
            times = StepTimes.of(scenario, variant, limits=LIMITS)
            made_s = time.process_time() - start_s
            (file,) = folder().iterdir()
            size_bytes = file.stat().st_size
        model = StepModel(
            scenario=scenario, variant=variant, costs=KernelCosts(scenario, resolve_profile(scenario, None))
        )
        for kind in ("decode", "mixed"):
            steps = drawn(arguments.steps, prompts=kind == "mixed")
            errors, call_s = compared(times, model, steps)
            worst = max(worst, errors.max())
            shown = "".join(f"{np.quantile(errors, at):8.2%}" for at in (0.5, 0.95, 1.0))
            print(
                f"{name:18}{variant:10}{kind:8}{shown}{made_s:7.2f} s{size_bytes / 1e6:6.2f} MB{1e6 * call_s:6.1f} us",
                flush=True,
            )
    print(f"largest error {worst:.2%} (bound {BOUND:.0%})")
    return 0 if worst <= BOUND else 1


def drawn(count: int, *, prompts: bool) -> Mixes:
    """Steps of all sizes within the limits."""
    random = np.random.default_rng(1)

    def between(low: float, high: Any) -> Any:
        return np.round(np.exp(random.uniform(np.log(low), np.log(high), count)))

    decoding = between(1, LIMITS.requests)
    context, nothing = between(1, LIMITS.context), np.zeros(count)
    if not prompts:
        return Mixes(decoding, decoding * context, nothing, nothing, nothing)
    chunk = np.minimum(between(4, LIMITS.tokens), LIMITS.tokens - decoding)
    several = np.minimum(between(1, 16), np.floor(chunk / 2))
    length = chunk / several
    before = np.where(random.random(count) < 0.5, 0.0, np.minimum(between(1, LIMITS.context), LIMITS.context - length))
    length += 2.0 * np.maximum(before, 0.0)
    return Mixes(decoding, decoding * context, several, chunk, chunk * length)


def compared(times: StepTimes, model: StepModel, steps: Mixes) -> tuple[Any, float]:
    """Errors of single steps, and CPU seconds of looking one up."""
    mixes = [Mix(*row) for row in np.column_stack(steps).tolist()]
    tries_s = []
    for _ in range(5):
        start_s = time.process_time()
        looked_up_s = [times.of_mix(mix) for mix in mixes]
        tries_s.append((time.process_time() - start_s) / len(mixes))
    direct_s = model.seconds(steps) + times.host_request_s * steps.decoding
    return np.abs(np.array(looked_up_s) / direct_s - 1.0), min(tries_s)


if __name__ == "__main__":
    sys.exit(main())
