"""Where results go: stdout, or a file whose extension says the format."""

import sys
from pathlib import Path

from ladder_sim.errors import UsageError

FORMATS = {".json": "json", ".csv": "csv", ".txt": "text"}


def chosen_format(*, json: bool, csv: bool, save: Path | None) -> str:
    """The format asked for: a flag, else the extension of `save`, else text."""
    if json and csv:
        raise UsageError("--json and --csv exclude each other", hint="leave one out, or use --save for a second file")
    if json or csv:
        return "json" if json else "csv"
    if save is None:
        return "text"
    if save.suffix.lower() not in FORMATS:
        raise UsageError(
            f"--save '{save}': the extension says no known format",
            hint=f"use {', '.join(FORMATS)}, or add --json or --csv",
        )
    return FORMATS[save.suffix.lower()]


def write(text: str, save: Path | None, *, flag: str = "--save") -> None:
    """Print `text`, or write it to the file that `flag` named."""
    if save is None:
        sys.stdout.write(text)
        return
    try:
        save.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{flag} '{save}' cannot be written: {error.strerror or error}", hint="choose a folder that is there"
        ) from error
    print(f"written: {save}", file=sys.stderr)
