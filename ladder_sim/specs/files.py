"""Reading and writing small text files."""

from pathlib import Path

from ladder_sim.errors import SpecError, UsageError
from ladder_sim.specs.values import shown_path

# a config.json is a few kilobytes
_MAX_FILE_BYTES = 10_000_000


def read_text(path: Path, *, what: str) -> str:
    """Read a small UTF-8 file; `what` says what was expected.

    Raises
    ------
    SpecError
        If it is missing, unreadable, over 10 MB, or not text.
    """
    name = shown_path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(
            f"{name}: no such file",
            hint=f"give the path of {what}; nothing is downloaded. `ladder-sim list` shows what is built in",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(
            f"{name}: cannot be read ({reason})", hint=f"give the path of {what} that you may read"
        ) from None
    if len(raw) > _MAX_FILE_BYTES:
        raise SpecError(
            f"{name}: must be at most {_MAX_FILE_BYTES} bytes",
            hint=f"give {what}, not the weights or another large file",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{name}: not UTF-8 text (byte {error.start}): a binary file?", hint=f"give {what}, not the weights"
        ) from None


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8.

    Raises
    ------
    UsageError
        If it cannot be written.
    """
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(
            f"'{shown_path(path)}' cannot be written: {error.strerror or error}", hint="choose a folder that exists"
        ) from error
