"""Options that several commands have, and what follows from them."""

import argparse
import datetime
import os
from pathlib import Path

from ladder_sim.errors import UsageError


def add_created(parser: argparse.ArgumentParser) -> None:
    """Add `--created`, the ISO date in a file that is written."""
    parser.add_argument("--created", default=datetime.date.today().isoformat(), help="date to write (default: today)")


def profile_name(out: Path) -> str:
    """Name of the profile that is written to `out`, a file .json or .json.gz."""
    return out.name.removesuffix(".gz").removesuffix(".json")


def check_folder(flag: str, file: Path | None) -> None:
    """Raise UsageError if the file of `flag` would lie in a folder that is missing, before work that takes minutes."""
    # pathlib raises an error for a name that is too long
    if file is not None and not os.path.isdir(file.parent):
        raise UsageError(f"{flag} '{file}': there is no such folder", hint="choose a folder that exists")
