"""Two ranks with a real link between them: namespaces joined by a rate-limited veth pair."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.link_lab import Laboratory, laboratory, stale
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import MissingDependencyError
from tests.conftest import NEEDS_ROOT, REPO
from tests.support.waiting import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.torch]

MODEL = ["--model=1b", "--tp=2", "--set=model.layers=2", "--set=model.vocab=512"]


@pytest.mark.root
def test_the_loop_closes_over_a_real_link_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out, profile = tmp_path / "result.json", tmp_path / "mine.json.gz"
    work = ["--backend=gloo", "--prompt=16", "--gen=2", "--rounds=3", f"--save={out}", f"--out={profile}"]
    try:
        with laboratory("200mbit") as lab:
            _is_slow(lab)
            lab.run(
                "ladder_sim_calibration",
                ["check", *MODEL, "--variant=standard,ladder,upper-bound", *work],
                timeout_s=HANG_S,
            )
    except MissingDependencyError as error:
        if "cannot be set up" not in error.message:
            raise
        pytest.skip(f"{NEEDS_ROOT} that may make network namespaces: {error.message}")
    result = json.loads(out.read_text())
    times = load_profile(profile).in_place
    assert times
    curve = times.collectives["all_reduce"]
    # 16 tokens of 1536 float32 numbers
    assert curve.size_bytes[-1] == 16 * 1536 * 4
    assert min(curve.seconds) > 0
    for wait in times.waits.values():
        assert 0 <= wait.core_share <= 1
        assert wait.slowed >= 0
    assert {row["variant"] for row in result["rows"]} == {"standard", "ladder", "upper-bound"}
    assert set(lab.spaces).isdisjoint(_namespaces())


def _namespaces() -> list[str]:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()


def _is_slow(lab: Laboratory) -> None:
    shown = subprocess.run(["ip", "netns", "exec", lab.spaces[0], "tc", "qdisc"], capture_output=True, text=True).stdout
    assert "tbf" in shown
    assert "200Mbit" in shown


def test_without_the_tools_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(MissingDependencyError, match="iproute2"), laboratory():
        pass


def test_what_a_killed_laboratory_left_is_found() -> None:
    """A namespace outlives its process if that is killed."""
    names = [f"ladder-a{os.getpid()}", "ladder-a4194999", "ladder-b4194999", "other", "ladder-a"]
    assert stale(names) == ["ladder-a4194999", "ladder-b4194999"]


@pytest.mark.root
def test_a_terminated_laboratory_leaves_no_namespace() -> None:
    code = """
from benchmarks.link_lab import laboratory
with laboratory():
    print("up", flush=True)
    import time
    time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        if other.stdout.readline() != "up\n":
            other.communicate()
            pytest.skip(NEEDS_ROOT)
        other.terminate()
        other.communicate(timeout=HANG_S)
    assert {f"ladder-a{other.pid}", f"ladder-b{other.pid}"}.isdisjoint(_namespaces())
