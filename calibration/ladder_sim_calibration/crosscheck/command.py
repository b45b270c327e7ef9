"""`crosscheck`: predict every wiring from measurements of this machine, run them all, and compare."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ladder_sim.cli.output import check_result_file, write, write_result
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.system.files import check_folder
from ladder_sim.values import whole
from ladder_sim_calibration.measure.command import require_torch
from ladder_sim_calibration.options import add_passes, passes_of, words
from ladder_sim_runtime.config import read_time

VARIANTS = ("standard", "parallel", "ladder", "hybrid-ladder:4", "desync:4", "upper-bound")
# small enough for a CPU
WORKLOAD = {"batch": 1, "prompt": 32, "gen": 8}
# emulated links: parts of standard's time that messages take
SHARES = (0.2, 0.3, 0.4, 0.5)
# those of `run.BOUNDS`; that module needs torch
BACKENDS = ("emulate", "gloo")


def add_to(commands: Any) -> None:
    """Add `check` to the command line."""
    check = commands.add_parser(
        "check",
        prog="ladder-sim calibrate check",
        help="predict from measurements of this machine, and run the same on it",
        description="Measure this machine, predict every wiring from it, run them all, and compare. "
        "Under torchrun this process is one of the ranks.",
    )
    add = check.add_argument
    add("--model", required=True, help=ARGUMENTS["model"].help)
    add(
        "--variant",
        type=words,
        action="extend",
        help="wirings, separated by commas; techniques follow "
        f"a plus, as in standard+token-split:2 (default {','.join(VARIANTS)})",
    )
    add("--tp", type=int, default=8, help="tensor-parallel degree (default %(default)s)")
    add_passes(check.add_argument_group("workload and stack"), WORKLOAD)
    add = check.add_argument_group("communication").add_argument
    add("--backend", choices=BACKENDS, default="emulate", help="emulate (default): emulated links; gloo: CPU ranks")
    add("--threads", type=int, default=1, help="CPU threads of each rank (default %(default)s)")
    add("--timeout", type=read_time, default="120s", help="time that ranks wait (default %(default)s)")
    add("--rounds", type=int, default=15, help="requests of each wiring and link (default %(default)s)")
    add("--profile", type=Path, metavar="FILE", help="predict from a profile of such passes instead of measuring one")
    add = check.add_argument_group("output").add_argument
    add("--json", action="store_true", help="one JSON object")
    add("--save", type=Path, metavar="FILE", help="write to a .json or .txt file instead of stdout")
    add("--html", type=Path, metavar="FILE", help="write a page with plots as well")
    add("--gate", action="store_true", help="exit with 1 if an error exceeds its bound")
    add("--out", type=Path, metavar="FILE", help="write the profile that predictions are from, for `predict`")
    check.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    check_result_file(options.save, json=options.json)
    check_folder("--html", options.html)
    check_folder("--save", options.save)
    check_folder("--out", options.out)
    require_torch()
    from ladder_sim_calibration.crosscheck.run import cross_check
    from ladder_sim_calibration.passes.observe import Experiment
    from ladder_sim_runtime.config import CommConfig

    variants = tuple(options.variant or VARIANTS)
    experiment = Experiment(
        scenario=passes_of(options, options.model, WORKLOAD, "tp"),
        variants=variants,
        runs=variants,
        shares=SHARES,
        rounds=whole(options.rounds, "--rounds", 2, 100_000),
        threads=whole(options.threads, "--threads", 1, 1024),
        links=CommConfig(backend=options.backend, timeout_s=options.timeout),
        profile=load_profile(options.profile) if options.profile else None,
    )
    checked = cross_check(experiment)
    if checked is None:
        return 0
    result, profile = checked
    if options.out:
        save_profile(profile, options.out)
        print(f"written: {options.out}", file=sys.stderr)
    return _show(result, options)


def _show(result: dict[str, Any], options: argparse.Namespace) -> int:
    """Write the result in the chosen format; return the exit code."""
    from ladder_sim.report.crosscheck import crosscheck_page, crosscheck_report

    if options.html:
        write(crosscheck_page(result), options.html)
    write_result(result, crosscheck_report(result), options.save, json=options.json)
    return int(options.gate and any(row["beyond"] for row in result["rows"]))
