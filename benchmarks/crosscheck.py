"""Predicts from measurements of this machine, runs the same on it, and exits with 1 if an error is too large.

python benchmarks/crosscheck.py                      emulated links, one process
python benchmarks/crosscheck.py --lab                two gloo ranks over 200 Mbit/s, between two namespaces; needs root
python benchmarks/crosscheck.py wirings [--lab]      the wirings that leave out, cut or defer more
python benchmarks/crosscheck.py experts [--lab]      FarSkip, on a small mixture of experts
python benchmarks/crosscheck.py techniques [--lab]   without another model, on a batch that is large enough to be split
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from link_lab import laboratory

from calibration.__main__ import main as calibrate
from ladder_sim.display.console import show
from ladder_sim.report.tables.crosscheck import crosscheck_report


class Runs(NamedTuple):
    """What is compared."""

    options: tuple[str, ...]
    """Model, variants and workload."""
    emulated: tuple[str, ...]
    """Further options on emulated links."""
    lab: tuple[str, ...]
    """And over the laboratory's link."""


SLICE = ("--model=1b", "--set=model.layers=8", "--set=model.vocab=8192")
SMALL = {"layers": 4, "vocab": 8192, "experts": 8, "experts_per_token": 2}
LAB = ("--prompt=64", "--gen=4")
LINKS = "--share=0.3,0.5"
RUNS = {
    "first": Runs(SLICE, ("--rounds=25",), (*LAB, "--rounds=15")),
    "wirings": Runs(
        (
            *SLICE,
            "--variant=standard,ladder,ladder:2,delayed:1,delayed:2,track:2,drop:4,partial:50",
            "--variant=hybrid-ladder:2:4,hybrid-delayed:1:4,hybrid-partial:50:4,upper-bound",
        ),
        (LINKS, "--rounds=20"),
        (*LAB, "--rounds=9"),
    ),
    "experts": Runs(
        (
            *("--model=qwen3-30b-a3b", *(f"--set=model.{name}={size}" for name, size in SMALL.items())),
            "--variant=standard,ladder,farskip,farskip:own,upper-bound",
        ),
        (LINKS, "--rounds=8"),
        (*LAB, "--rounds=6"),
    ),
    "techniques": Runs(
        (
            *("--model=1b", "--set=model.layers=4", "--set=model.vocab=8192", "--batch=32", "--prompt=16", "--gen=4"),
            "--variant=standard,standard+token-split:2,standard+sequence-parallel,ladder",
        ),
        (LINKS, "--rounds=10"),
        ("--rounds=5",),
    ),
}
LIMIT_S = 600.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", choices=RUNS, default="first")
    parser.add_argument("--lab", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(argv)
    runs, rounds = RUNS[options.runs], [f"--rounds={options.rounds}"] if options.rounds else []
    with tempfile.TemporaryDirectory() as folder:
        out = options.save or Path(folder, "result.json")
        arguments = ["crosscheck", *runs.options, f"--save={out}"]
        if options.lab:
            with laboratory("200mbit") as lab:
                lab.run("calibration", [*arguments, *runs.lab, "--tp=2", "--backend=gloo", *rounds], timeout_s=LIMIT_S)
        elif calibrate([*arguments, *runs.emulated, "--tp=8", *rounds]):
            return 1
        result = json.loads(out.read_text("utf-8"))
    show(crosscheck_report(result))
    return int(any(row["beyond"] for row in result["rows"]) or (options.lab and not gains(result)))


def gains(result: dict[str, Any]) -> bool:
    """Whether ladder is faster than standard over the whole measured interval."""
    return all(row["low"] > 1.0 for row in result["rows"] if (row["variant"], row["quantity"]) == ("ladder", "speedup"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
