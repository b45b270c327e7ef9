"""What searched wirings gain: over every named wiring in ten scenarios, and in real passes over an emulated link.

python -m benchmarks.search gains
python -m benchmarks.search run
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ladder_sim import Scenario
from ladder_sim.analysis.versus import wirings_for
from ladder_sim.confidence.runs import is_faster
from ladder_sim.errors import exit_code
from ladder_sim.search.search import SearchResult, search
from ladder_sim.search.space import Space, read_space
from ladder_sim.specs import catalog
from ladder_sim.validation.runs import Compared
from ladder_sim.wirings.names import parse

SPACE = Path(__file__).parent.parent / "examples" / "search.toml"
SCENARIOS = (
    {"model": "8b", "tp": 4},
    {"model": "70b"},
    {"model": "70b", "prompt": 8192, "gen": 16, "batch": 4},
    {"model": "70b", "stack": "vllm", "concurrency": 64},
    {"model": "70b", "cluster": "l40s-pcie", "stack": "vllm", "concurrency": 32},
    {"model": "70b", "cluster": "a100-sxm-hdr", "stack": "vllm", "concurrency": 16},
    {"model": "405b", "nodes": 2},
    {"model": "405b", "nodes": 2, "stack": "vllm", "concurrency": 32},
    {"model": "qwen3-32b", "tp": 4, "stack": "sglang", "concurrency": 128},
    {"model": "mixtral-8x7b", "tp": 8, "stack": "vllm", "concurrency": 32},
)
# of the run: eight layers, that choose by two; messages take this part of standard's time
LAYERS, GROUP, SHARE, ROUNDS = 8, 2, 0.4, 3
# seconds of the whole run, and the fewest and most rounds in which what was found runs in turns with standard
BUDGET_S, LEAST_ROUNDS, MOST_ROUNDS = 210.0, 9, 61
# largest error of a predicted gain
BOUND = 0.08


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gains", "run"))
    return {"gains": gains, "run": run}[parser.parse_args().what]()


def gains() -> int:
    """Print the fastest searched wiring of each scenario next to the fastest named one, whatever they lose."""
    beyond = 0
    print("scenario | fastest found | over standard | fastest named | found over named | beyond its interval")
    for fields in SCENARIOS:
        found = search(Scenario(**fields), read_space(SPACE), ignore_memory=True)
        fastest = min((*found.known, *found.unknown), key=lambda each: each.request_s)
        over = [found.predictions.over(fastest.variant, name) for name in found.named if name != fastest.variant]
        beyond += all(map(is_faster, over))
        of_standard = found.predictions[fastest.variant].speedup
        ratio = found.predictions.over(fastest.variant, found.best_named)
        name = " ".join(f"{key}={value}" for key, value in fields.items())
        cells = (name, fastest.variant, of_standard.text, found.best_named, ratio.text, all(map(is_faster, over)))
        print(" | ".join(map(str, cells)), flush=True)
    print(f"faster than every named wiring beyond its interval: {beyond} of {len(SCENARIOS)}")
    return 0


def run() -> int:
    """Search for this machine at TP 2 over an emulated link, run the best in turns with standard, and compare.

    What is run is profiled in the same rounds. A gain is the median of the rounds' ratios, with its 95 % interval. The
    exit code is 1 if the error is beyond `BOUND` for every gain in the interval.
    """
    from ladder_sim_calibration.crosscheck.run import cross_check
    from ladder_sim_calibration.passes.fit import on_link, profile_of
    from ladder_sim_calibration.passes.observe import Experiment, observe
    from ladder_sim_runtime.config import CommConfig

    model = replace(catalog.model("1b"), layers=LAYERS, vocab=8192)
    scenario = Scenario(model=model, cluster="this-machine", tp=2, prompt=32, gen=8)
    # without ladder, so that what is run is no named wiring
    choices = {name: rules for name, rules in read_space(SPACE).choices.items() if name != "ladder"}
    space = Space(choices={**choices, "late-attention": {"attention": {"delay": 1}}}, penalties={}, group=GROUP)
    named = ("standard", *wirings_for(model)[0])
    links = CommConfig(backend="emulate")
    alone = Experiment(
        scenario=scenario, variants=named, runs=("standard",), shares=(SHARE,), rounds=ROUNDS, links=links
    )
    started_s = time.monotonic()
    measured = observe(alone)
    round_s = (time.monotonic() - started_s) / ROUNDS
    assert measured is not None
    profile = profile_of(measured, created="")
    link = next(name for name in measured.links if name != measured.calibration_link)
    found: SearchResult = search(measured.scenario, space, profile=on_link(profile, measured.emulated[link]))
    print(found)
    best = found.best
    if best is None:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "best.toml"
        file.write_text(parse(best.variant).toml)
        print(file.read_text())
        variants = ("standard", str(file), "ladder")
        left_s = BUDGET_S - (time.monotonic() - started_s)
        rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, int(left_s / round_s)))
        # profiled again, in turns with the runs: what else the machine does affects both alike
        checked = cross_check(replace(alone, variants=variants, runs=variants, rounds=rounds))
        assert checked is not None
        beyond = False
        for row in checked[0]["rows"]:
            if row["quantity"] == "speedup" and row["link"] == link:
                searched = row["variant"] == str(file)
                fields = ("variant", "quantity", "predicted", "measured", "low", "high")
                compared = Compared(**{name: row[name] for name in fields})
                beyond |= searched and compared.exceeds(BOUND)
                judged = "beyond" if compared.exceeds(BOUND) else "undecided" if compared.undecided(BOUND) else "within"
                measured_text = f"{compared.measured:.3f} ({compared.low:.3f}-{compared.high:.3f})"
                print(f"{'searched' if searched else compared.variant}: predicted {compared.predicted:.3f}, ", end="")
                print(f"measured {measured_text} in {rounds} rounds, {compared.error:+.1%}: {judged} {BOUND:.0%}")
        print("load average after each round:", [round(each, 1) for each in checked[0]["environment"]["load"]])
        print(f"{time.monotonic() - started_s:.0f} s")
    return int(beyond)


if __name__ == "__main__":
    sys.exit(exit_code(main))
