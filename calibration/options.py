"""Options that several commands have, and what follows from them."""

import argparse
import datetime
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
    if file is not None and not file.parent.is_dir():
        raise UsageError(f"{flag} '{file}': there is no such folder", hint="choose a folder that exists")
