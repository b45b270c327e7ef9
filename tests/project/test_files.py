"""Reading and writing files: what is refused, and what a full disk, a killed process or a second one leaves."""

import errno
import gzip
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ladder_sim.errors import ProfileError, SpecError, UsageError
from ladder_sim.system.files import TOML_BYTES, append, locked, read_bytes, read_text, replacing, write_all, write_file
from tests.conftest import REPO
from tests.support.commands import process, run
from tests.support.waiting import HANG_S


def _python(code: str, **options: object) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **options)  # type: ignore[call-overload, no-any-return]


def _small_files() -> None:
    """For a child's `preexec_fn`: writing beyond 100,000 bytes of a file fails, first with a short write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe would be waited for, and a device read without end."""
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(UsageError, match=f"is {kind}: must be a file"):
            read_bytes(path, what="a table", error=UsageError)
    with pytest.raises(ProfileError, match="no such file"):
        read_bytes(tmp_path / "none", what="a profile", error=ProfileError)


def test_files_have_a_limit_unpacked_too(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(bytes(1_000_000)))
    assert read_bytes(file, what="x", unpack=True, limit_bytes=1_000_000) == bytes(1_000_000)
    assert len(read_bytes(file, what="x", limit_bytes=10_000)) < 10_000
    with pytest.raises(SpecError, match="must be at most 999999 bytes"):
        read_bytes(file, what="x", unpack=True, limit_bytes=999_999)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(SpecError, match="cut off or damaged"):
        read_bytes(file, what="x", unpack=True)


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--model", "{}"),
        ("predict", "--cluster", "{}.toml"),
        ("predict", "--profile", "{}"),
        ("predict", "--set", "inter.fabric={}.toml", "--nodes", "2"),
        ("validate", "--data", "{}.csv"),
        ("trace", "import", "{}"),
    ],
)
def test_no_command_waits_for_a_pipe(tmp_path: Path, command: tuple[str, ...]) -> None:
    for name in ("pipe", "pipe.toml", "pipe.csv"):
        os.mkfifo(tmp_path / name)
    ran = process(*(word.format(tmp_path / "pipe") for word in command))
    assert ran.code == 2, ran
    assert "hint: a bug" not in ran.err


@pytest.mark.parametrize("key", ["a" + ".a" * 100_000 + " = 1", "[a" + ".a" * 100_000 + "]"])
@pytest.mark.parametrize("command", [("--cluster",), ("--stack",), ("--nodes", "2", "--set")])
def test_a_long_key_is_not_parsed(tmp_path: Path, key: str, command: tuple[str, ...]) -> None:
    """Regression: it took 40 seconds, for the parser's time grows with the square of its length."""
    file = tmp_path / "long.toml"
    file.write_text(f"{key}\n")
    ran = run("predict", *command, f"inter.fabric={file}" if command[-1] == "--set" else str(file))
    assert ran.code == 2
    assert f"{file}: must be at most {TOML_BYTES} bytes" in ran.err


def _fail_half_way(file: Path) -> None:
    with replacing(file) as part:
        part.write(b"half")
        raise OSError(errno.ENOSPC, "full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    write_file(file, "old")
    file.chmod(0o640)
    with pytest.raises(OSError, match="full"):
        _fail_half_way(file)
    assert file.read_text() == "old"
    link = tmp_path / "link"
    link.symlink_to(file)
    write_file(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "x.txt"]
    write_file(Path("/dev/null"), "a device stays one")
    assert not Path("/dev/null").is_file()


def test_a_full_disk_is_reported_and_leaves_whole_lines(tmp_path: Path) -> None:
    """An unbuffered write takes what fits and says so by its return value only."""
    code = f"""
from pathlib import Path
from ladder_sim.system.files import append, write_all
try:
    with open({str(tmp_path / "raw")!r}, "wb", buffering=0) as file:
        write_all(file, bytes(150_000))
except OSError as error:
    print(error.strerror)
try:
    for _ in range(99):
        append(Path({str(tmp_path / "lines")!r}), b"x" * 2_999 + b"\\n")
except OSError as error:
    print(error.strerror)
"""
    child = _python(code, stdout=subprocess.PIPE, preexec_fn=_small_files)
    assert child.communicate(timeout=HANG_S)[0] == "File too large\n" * 2
    assert (tmp_path / "lines").stat().st_size == 99_000


def test_a_lock_keeps_others_out_and_ends_with_its_process(tmp_path: Path) -> None:
    file = tmp_path / "x"
    code = f"""
import time
from pathlib import Path
from ladder_sim.system.files import locked
with locked(Path({str(file)!r})), locked(Path({str(tmp_path)!r})):
    print("locked", flush=True)
    time.sleep(600)
"""
    other = _python(code, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    for path in (file, tmp_path):
        with pytest.raises(UsageError, match="is being written by another process"), locked(path):
            pass
    other.kill()
    other.communicate()
    with locked(file), locked(tmp_path):
        append(file, b"mine")
    assert read_text(file, what="x") == "mine"


def test_all_is_written(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb", buffering=0) as file:
        write_all(file, b"")
        write_all(file, b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc"
