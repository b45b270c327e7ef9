"""Run, time, simulate, predict, check: the whole loop on two CPU cores, in three minutes. Needs ladder-sim[runtime].

Run it as root, with a limit `rtprio`, or on four cores: else messages wait for the scheduler, and ladder gains less
than predicted.

python -m examples.loop [FOLDER]   writes this-machine.json.gz there; by default here
"""

import sys
from pathlib import Path

from ladder_sim import Scenario, predict, validate
from ladder_sim.costs.profile_file import save_profile
from ladder_sim.errors import exit_code
from ladder_sim_calibration.passes.observe import measure
from ladder_sim_runtime.runs import bench

TIMED = ["standard", "ladder"]
HELD_BACK = ["parallel", "desync:4"]
# requests without communication: how fast this machine is while the others run
PACE = ["upper-bound"]

scenario = Scenario(
    model="1b",
    cluster="this-machine",  # no datasheet: priced by a profile alone
    tp=2,
    batch=1,
    prompt=64,
    gen=8,
    overrides={"model.layers": 8, "model.vocab": 8192},
)


def main(folder: str = ".") -> None:
    """Run the loop; raise BoundError if a prediction is too far off."""
    profile = Path(folder, "this-machine.json.gz")

    # runtime: two gloo ranks; wirings take turns
    runs = bench(scenario, TIMED + HELD_BACK + PACE, repeats=20)

    # calibration: kernels, messages and waits of two wirings
    save_profile(measure(scenario, TIMED), profile)

    # graph and simulation
    speedup = predict(scenario, list(runs), profile=str(profile))["ladder"].speedup
    print(f"Ladder makes requests {speedup.value:.2f}x faster (90 %: {speedup.low:.2f}-{speedup.high:.2f}) here.\n")

    # cross-check
    check = validate(runs, profile=str(profile), held_back=HELD_BACK)
    print(check)
    check.require(tpot_s=0.15, speedup=0.08)
    print("No error is beyond its bound, by the measured intervals: TPOT 15 %, speedup 8 %.")


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(*sys.argv[1:])))
