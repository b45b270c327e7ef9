"""Files: one reader with a size limit, one way to write, one lock, and versions of what is written.

Everything that a user names is read and written here: a device, a pipe or an archive that unpacks without end is
refused, and a full disk or a killed process leaves either the old file or the new one.
"""

import contextlib
import errno
import fcntl
import gzip
import json
import os
import re
import secrets
import stat
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ladder_sim.errors import LadderSimError, SpecError, UsageError, printable

KEY = "schema_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The versions of one kind of document.

    A JSON object or a TOML file has its version under ``schema_version``. One without it is of version 1: not every
    document of ladder-sim 0.1 was marked, and a file that was written by hand need not be.
    """

    version: int = 1
    """Version that is written."""
    oldest: int = 1
    """Oldest version that can still be read."""
    stale: str = ""
    """The way out of an older one."""

    def marked(self, /, **content: Any) -> dict[str, Any]:
        """Return a document with its version."""
        return {KEY: self.version, **content}

    def check(self, document: Mapping[str, Any], origin: str, *, error: type[LadderSimError]) -> int:
        """Return the version of a document, called `origin` in errors; raise `error` if it cannot be read."""
        version = document.get(KEY, 1)
        if type(version) is not int or version < 1:
            raise error(
                f"{origin}: {KEY} is {ascii(version)[:60]}: must be a whole number from 1 on",
                hint="create it again; it was edited or damaged",
            )
        if version > self.version:
            raise error(
                f"{origin} has {KEY} {version}; this ladder-sim reads up to {self.version}",
                hint="it was written by a newer ladder-sim; upgrade",
            )
        if version < self.oldest:
            raise error(f"{origin} has {KEY} {version}; this ladder-sim reads from {self.oldest} on", hint=self.stale)
        return version


# a config.json is a few kilobytes
SMALL_BYTES = 10_000_000
# a cluster's TOML file has three; the parser's time grows with the square of a key's length
TOML_BYTES = 16_000
# a disk, a quota or a limit of files that leaves no room
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_GZIP_MAGIC = b"\x1f\x8b"
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def cache_folder() -> Path:
    """Return the folder of what one call leaves for another (XDG Base Directory Specification)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path(os.path.expanduser("~/.cache"))) / "ladder-sim"


def stamp(path: str | Path) -> tuple[int, ...]:
    """Return what changes when a file is written to or another takes its place; raises OSError."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def shown_path(path: str | Path) -> str:
    """Write a path in full, with escapes for what a terminal cannot print."""
    return printable(str(path), lines=False)


def read_bytes(
    path: Path,
    *,
    what: str,
    limit_bytes: int = SMALL_BYTES,
    unpack: bool = False,
    error: type[LadderSimError] = SpecError,
) -> bytes:
    """Read a file, unpacked to `limit_bytes` at most.

    `what` it should be is for the hint of an error, e.g. "a config.json"; with `unpack` it may be gzipped. Raises
    `error` if it is missing, unreadable, no regular file, damaged or too large.
    """
    name = shown_path(path)
    try:
        # opening a pipe would wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, descriptor)
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                kind = next((text for test, text in _KINDS if test(mode)), "a device")
                raise error(f"{name}: is {kind}: must be a file", hint=f"give the path of {what}")
            file = stack.enter_context(open(descriptor, "rb", closefd=False))
            packed = unpack and file.peek(2)[:2] == _GZIP_MAGIC
            # bounded by what is read and not by what the file system reports: files of /proc have size 0
            raw = (gzip.GzipFile(fileobj=file) if packed else file).read(limit_bytes + 1)
    except FileNotFoundError:
        raise error(
            f"{name}: no such file",
            hint=f"give the path of {what}; nothing is downloaded"
            + (". `ladder-sim list` shows what is built in" if error is SpecError else ""),
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise error(
            f"{name}: a gzip file that is cut off or damaged: {fault}", hint="copy or create it again"
        ) from None
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise error(f"{name}: cannot be read ({reason})", hint=f"give the path of {what} that you may read") from None
    if len(raw) > limit_bytes:
        size = f"{limit_bytes // 2**20} MiB" if limit_bytes % 2**20 == 0 else f"{limit_bytes} bytes"
        raise error(f"{name}: must be at most {size}", hint=f"give {what}, not the weights or another large file")
    return raw


def read_text(
    path: Path,
    *,
    what: str,
    limit_bytes: int = SMALL_BYTES,
    unpack: bool = False,
    error: type[LadderSimError] = SpecError,
) -> str:
    """Read a file of UTF-8 text, as `read_bytes` does."""
    raw = read_bytes(path, what=what, limit_bytes=limit_bytes, unpack=unpack, error=error)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise error(
            f"{shown_path(path)}: not UTF-8 text (byte {fault.start}): a binary file?",
            hint=f"give {what}, not the weights",
        ) from None


def read_toml(path: Path, schema: Schema, *, what: str) -> dict[str, Any]:
    """Read a TOML file, without its version; raises SpecError, as `read_bytes` does, also if it is no TOML."""
    text = read_text(path, what=what, limit_bytes=TOML_BYTES)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as fault:
        reason = "nested too deeply" if isinstance(fault, RecursionError) else fault
        raise SpecError(
            f"{shown_path(path)}: not valid TOML ({reason})", hint="correct the file; quantities with a unit are quoted"
        ) from None
    schema.check(table, shown_path(path), error=SpecError)
    table.pop(KEY, None)
    return table


def json_fault(text: str, fault: Exception, *, last: bool = True) -> tuple[str, str]:
    """Say why a text is no JSON, and the way out if it is the last of a file and ends early; else that is empty.

    Examples
    --------
    >>> import json
    >>> for text in ('{"a": [1, 2', '{"a": 1,, "b": 2}'):
    ...     try:
    ...         json.loads(text)
    ...     except ValueError as fault:
    ...         print(json_fault(text, fault))
    ('ends in the middle of its JSON', 'the file is cut off: copy it again')
    ('no JSON (Expecting property name enclosed in double quotes: line 1 column 9 (char 8))', '')
    """
    if isinstance(fault, RecursionError):
        return "no JSON (nested too deeply)", ""
    whole = text.rstrip()
    if isinstance(fault, json.JSONDecodeError) and whole[:1] in ("{", "["):
        # a text that is whole ends with a bracket, one that ends early maybe in the middle of a word or number
        in_word = fault.msg.startswith("Unterminated string") or re.fullmatch(r"[-+.\w]*", whole[fault.pos :])
        if fault.pos >= len(whole) or (whole[-1] not in "]}" and in_word):
            return "ends in the middle of its JSON", "the file is cut off: copy it again" if last else ""
    return f"no JSON ({fault})", ""


def write_file(path: Path, content: str | bytes, *, error: type[LadderSimError] = UsageError) -> None:
    """Write a file, text as UTF-8, whole or not at all; raises `error`."""
    try:
        with replacing(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as fault:
        raise error(
            f"'{shown_path(path)}' cannot be written: {fault.strerror or fault}", hint=writing_hint(fault)
        ) from fault


def writing_hint(fault: OSError) -> str:
    """Return the way out for a file that cannot be written."""
    if fault.errno in FULL:
        return "make room, allow larger files, or choose another disk"
    return "choose a folder that exists and can be written"


def check_folder(option: str, file: Path | None) -> None:
    """Raise UsageError if the file of an option would lie in a folder that is missing, before anything is computed."""
    # pathlib raises an error for a name that is too long
    if file is not None and not os.path.isdir(file.parent):
        raise UsageError(
            f"{option} '{shown_path(file)}' cannot be written: there is no such folder",
            hint="choose a folder that exists",
        )


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` when the body is done: nobody sees a part of it.

    A link stays a link, a device or a pipe is written directly, and two writers at once leave the file of one of them.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_all(file: IO[bytes], content: bytes) -> None:
    """Write all of it: an unbuffered file on a full disk takes a part, and says so by its return value only."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def append(path: Path, content: bytes) -> None:
    """Append to a file, whole or not at all, and wait until it is on the disk; raises OSError. Hold its lock."""
    with path.open("ab", buffering=0) as file:
        size_bytes = file.seek(0, os.SEEK_END)
        try:
            write_all(file, content)
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size_bytes)
            raise


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing a file, which is created, or a folder.

    The lock ends with the process, however that ends. With `wait` it comes once another process is done. Raises
    UsageError if another process writes it; OSError if it cannot be opened.
    """
    while True:
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        descriptor = os.open(path, flags, 0o666)
        try:
            _lock(descriptor, path, wait=wait)
            # the other process may have moved it away, so that a new one has to be created
            if _is_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, path: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise UsageError(
            f"'{shown_path(path)}' is being written by another process", hint="wait for it, or choose another place"
        ) from None
    except OSError:
        # a file system without locks
        return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
