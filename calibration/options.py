"""Options that several commands have, and what follows from them."""

import argparse
import datetime
from pathlib import Path


def add_created(parser: argparse.ArgumentParser) -> None:
    """Add `--created`, the ISO date in a file that is written."""
    parser.add_argument("--created", default=datetime.date.today().isoformat(), help="date to write (default: today)")


def words(text: str) -> list[str]:
    """Split the value of an option that takes several, separated by commas."""
    return text.split(",")


def profile_name(out: Path) -> str:
    """Name of the profile that is written to `out`, a file .json or .json.gz."""
    return out.name.removesuffix(".gz").removesuffix(".json")
