"""Predicts every wiring from measurements of this machine, runs them all, and exits with 1 if an error is too large.

python benchmarks/crosscheck.py            emulated links, one process
python benchmarks/crosscheck.py --lab      two gloo ranks over 200 Mbit/s, between two network namespaces; needs root
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from link_lab import laboratory

from calibration.__main__ import main as calibrate
from ladder_sim.display.console import show
from ladder_sim.report.tables.crosscheck import crosscheck_report

MODEL = ("--model=1b", "--set=model.layers=8", "--set=model.vocab=8192")
LAB = ("--tp=2", "--backend=gloo", "--prompt=64", "--gen=4", "--rounds=15")
LIMIT_S = 600.0


def main(flags: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        arguments = ["crosscheck", *MODEL, f"--save={out}"]
        if "--lab" in flags:
            with laboratory("200mbit") as lab:
                lab.run("calibration", [*arguments, *LAB], timeout_s=LIMIT_S)
        elif calibrate([*arguments, "--tp=8", "--rounds=25"]):
            return 1
        result = json.loads(out.read_text("utf-8"))
    show(crosscheck_report(result))
    return int(any(row["beyond"] for row in result["rows"]) or ("--lab" in flags and not gains(result)))


def gains(result: dict[str, Any]) -> bool:
    """Whether ladder is faster than standard over the whole measured interval."""
    return all(row["low"] > 1.0 for row in result["rows"] if (row["variant"], row["quantity"]) == ("ladder", "speedup"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
