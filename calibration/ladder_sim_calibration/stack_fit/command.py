"""`calibrate fit-stack`: fits a stack's figures to a few of its end-to-end runs."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.report.console import show
from ladder_sim.system.files import check_folder
from ladder_sim.validation.dataset import PROTOCOLS, read_dataset
from ladder_sim.values import whole
from ladder_sim_calibration.options import add_created, profile_name
from ladder_sim_calibration.stack_fit.fit import DRAWS, fit_stack


def add_to(commands: Any) -> None:
    """Add `fit-stack` to the command line."""
    fit = commands.add_parser("fit-stack", help="fit a stack's figures to a few of its end-to-end runs")
    fit.add_argument(
        "--runs", required=True, help="CSV file of runs, as `validate` reads it, or a shipped data set's name"
    )
    fit.add_argument("--base", required=True, help="measured profile of the GPU: a shipped one's name, or a file")
    fit.add_argument("--out", type=Path, required=True, help="profile to write")
    fit.add_argument("--protocol", choices=PROTOCOLS, help="rows that may be fitted; default: all")
    fit.add_argument("--draws", type=int, default=DRAWS, help="bootstrap replicates (default %(default)s)")
    fit.add_argument("--seed", type=int, default=0, help="of starting points and replicates (default %(default)s)")
    add_created(fit)
    fit.set_defaults(run=_fit_stack)


def _fit_stack(options: argparse.Namespace) -> None:
    from ladder_sim_calibration.show import describe_stack_fit

    check_folder("--out", options.out)
    data = read_dataset(options.runs)
    runs = data.measurements
    if options.protocol:
        runs = tuple(filter(PROTOCOLS[options.protocol].fits, runs))
    draws, seed = whole(options.draws, "--draws", 2, 100_000), whole(options.seed, "--seed", 0, 2**32 - 1)
    fit = fit_stack(
        runs,
        load_profile(options.base),
        name=profile_name(options.out),
        dataset=data.name,
        protocol=options.protocol or "",
        compared=data.measurements,
        draws=draws,
        seed=seed,
        created=options.created,
    )
    save_profile(fit.profile, options.out)
    if fit.profile.stack_fit:
        show(describe_stack_fit(fit.profile.stack_fit), sys.stderr)
    for name in fit.left_out:
        print(f"not fitted: {name}: none of these runs depends on it", file=sys.stderr)
    errors = np.expm1(fit.log_errors)
    mean, largest = np.abs(errors).mean(), np.abs(errors).max()
    print(f"error of the fitted runs' times: {mean:.1%} on average, {largest:.1%} at most", file=sys.stderr)
    print(options.out)
