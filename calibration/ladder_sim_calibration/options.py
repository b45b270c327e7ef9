"""Options that several commands have, and what follows from them."""

import argparse
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.cluster import THIS_MACHINE
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import settings
from ladder_sim.values import whole


def add_created(parser: argparse.ArgumentParser) -> None:
    """Add `--created`, the ISO date in a file that is written."""
    parser.add_argument("--created", default=datetime.date.today().isoformat(), help="date to write (default: today)")


def words(text: str) -> list[str]:
    """Split the value of an option that takes several, separated by commas."""
    return text.split(",")


def profile_name(out: Path) -> str:
    """Name of the profile that is written to `out`, a file .json or .json.gz."""
    return out.name.removesuffix(".gz").removesuffix(".json")


def add_passes(group: Any, workload: Mapping[str, int]) -> None:
    """Add what says which passes run on this machine; `workload` has the defaults of their sizes."""
    for name, default in workload.items():
        group.add_argument(f"--{name}", type=int, default=default, help=f"{ARGUMENTS[name].help} Default: {default}.")
    group.add_argument("--stack", default="gpt-fast", help=f"{ARGUMENTS['stack'].help} Default: %(default)s.")
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of model or stack, e.g. model.layers=8"
    )


def passes_of(options: argparse.Namespace, model: str, workload: Mapping[str, int], ranks: str) -> Scenario:
    """Return the scenario of passes on this machine, on as many ranks as the option `ranks` says."""
    return Scenario(
        model=model,
        cluster=THIS_MACHINE,
        stack=options.stack,
        tp=whole(getattr(options, ranks), f"--{ranks}", 2, 1024),
        overrides=settings(options.set),
        **{name: getattr(options, name) for name in workload},
    )
