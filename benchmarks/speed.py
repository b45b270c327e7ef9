"""How fast the simulator answers, against the bounds it promises.

Prints one row per figure and exits 1 if a bound is exceeded. Cold figures are medians over fresh processes, so they
include the start of the interpreter::

    python benchmarks/speed.py [--json]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

IMPORT = [sys.executable, "-c", "import ladder_sim"]
COMMAND = [sys.executable, "-m", "ladder_sim", "predict", "--model", "405b", "--nodes", "2"]
COLD_RUNS = 7
WARM_RUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement and its bound, in the same unit."""

    name: str
    # what was measured
    value: float
    # median, or peak for memory
    bound: float
    # most that is allowed
    unit: str
    # of both

    @property
    def holds(self) -> bool:
        return self.value < self.bound


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure speed and memory against their bounds.")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    arguments = parser.parse_args()
    found = measure()
    if arguments.json:
        print(json.dumps([{**asdict(figure), "holds": figure.holds} for figure in found], indent=1))
    else:
        for figure in found:
            verdict = "ok" if figure.holds else "EXCEEDED"
            print(f"{figure.name:<44} {figure.value:8.1f} {figure.unit:<3} bound {figure.bound:6.0f}  {verdict}")
    return 0 if all(figure.holds for figure in found) else 1


def measure() -> list[Figure]:
    # The package is imported in this process last: a child's peak memory counts from what its parent had at the fork.
    import_s = median_s(lambda: quietly(IMPORT), COLD_RUNS)
    command_s = median_s(lambda: quietly(COMMAND), COLD_RUNS)
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    from ladder_sim import Scenario, predict

    scenario = Scenario.of(model="405b", nodes=2)
    predict(scenario)
    warm_s = median_s(lambda: predict(scenario), WARM_RUNS)
    return [
        Figure(name="import ladder_sim", value=import_s * 1e3, bound=300, unit="ms"),
        Figure(name="predict --model 405b --nodes 2, cold", value=command_s * 1e3, bound=1500, unit="ms"),
        Figure(name="the same, peak memory", value=peak_bytes / 1e6, bound=300, unit="MB"),
        Figure(name="predict() of the four default variants, warm", value=warm_s * 1e3, bound=200, unit="ms"),
    ]


def quietly(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")


def median_s(call: Callable[[], object], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
