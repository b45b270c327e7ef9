"""`ladder-sim doctor`: tells a newcomer what works here, whatever is missing."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from ladder_sim.cli import doctor
from ladder_sim.costs.profile_file import shipped_profiles
from ladder_sim.errors import ProfileError, install_command
from tests.conftest import REPO
from tests.support.commands import process, run
from tests.support.schemas import check

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]


def names(requirements: list[str]) -> list[str]:
    return [text.partition(">")[0] for text in requirements]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no other process: importing torch takes seconds."""
    monkeypatch.setattr(doctor, "_output", lambda command, seconds: None)


def test_it_knows_every_dependency() -> None:
    assert names(PROJECT["dependencies"]) == list(doctor.BASE)
    # no command needs what builds the site
    others = ("test", "docs")
    extras = {name: names(given) for name, given in PROJECT["optional-dependencies"].items() if name not in others}
    assert extras == {name: list(extra.packages) for name, extra in doctor.EXTRAS.items()}


def test_text() -> None:
    ran = run("doctor")
    assert ran.code == 0
    for name in (*doctor.BASE, *shipped_profiles(), "CPU core"):
        assert name in ran.out
    assert not ran.err


def test_every_command_is_listed_with_what_it_needs() -> None:
    """The commands are those that the help lists; what needs more than the base is one of them."""
    groups = json.loads(run("doctor", "--json").out)["commands"]
    listed = [name for group in groups for name in group["names"]]
    assert len(listed) == len(set(listed))
    for group in ("", "trace", "calibrate"):
        panel = run(*group.split(), "--help").out.rpartition(" Commands ")[2]
        helped = {f"{group} {name}".strip() for name in re.findall(r"^\W ([a-z-]+) ", panel, re.M)} - {
            "trace",
            "calibrate",
        }
        assert helped
        assert helped <= set(listed)
        # others are one of these with an option or an argument
        for name in set(listed) - helped:
            if name.rpartition(" ")[0] == group:
                assert name.split()[0] in helped, name
    needs = {name: group["needs"] for group in groups for name in group["names"]}
    assert needs["predict"] == []
    for name in ("run", "calibrate check", "calibrate evidence"):
        assert "torch" in needs[name], name
    text = run("doctor").out
    assert all(name.split()[-1] in text for name in listed)


def test_json() -> None:
    ran = run("doctor", "--json")
    found = json.loads(ran.out)
    check("doctor", found)
    assert found["ready"] is True
    assert found["packages"]["numpy"]
    assert found["profiles"]["a100-sxm"] == "a100-sxm-hdr"
    assert found["cpu_cores"] >= 1


def test_missing_extras_come_with_their_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    optional = {name for extra in doctor.EXTRAS.values() for name in extra.packages}
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name in optional else real(name))
    ran = run("doctor")
    assert ran.code == 0
    for extra in doctor.EXTRAS:
        assert install_command(extra) in ran.out
    assert re.search(r"^predict, sweep, .* no extra +yes$", ran.out, re.M)


HERE = Path.cwd().as_uri()


@pytest.mark.parametrize(
    ("origin", "command", "plug_in"),
    [
        ({"url": HERE, "dir_info": {"editable": True}}, "pip install -e '.[explorer]'", "pip install -e ./plugins/p"),
        ({"url": HERE, "dir_info": {}}, "pip install '.[explorer]'", "pip install ./plugins/p"),
        (
            {"url": "file://{there}/my%20copy", "dir_info": {}},
            "pip install '{there}/my copy[explorer]'",
            "pip install '{there}/my copy/plugins/p'",
        ),
        (
            {"url": "https://example.org/l.git", "vcs_info": {"vcs": "git", "commit_id": "1a2b"}},
            "pip install 'ladder-sim[explorer] @ git+https://example.org/l.git@1a2b'",
            "pip install 'p @ git+https://example.org/l.git@1a2b#subdirectory=plugins/p'",
        ),
        (
            {"url": "file://{there}/ladder_sim-1-py3-none-any.whl", "archive_info": {}},
            "pip install 'ladder-sim[explorer] @ file://{there}/ladder_sim-1-py3-none-any.whl'",
            "pip install ./plugins/p",
        ),
        # the machine on which this copy was built
        ({"url": "file:///elsewhere/copy", "dir_info": {}}, "pip install '.[explorer]'", "pip install ./plugins/p"),
        ({}, "pip install '.[explorer]'", "pip install ./plugins/p"),
    ],
)
def test_an_extra_and_a_plug_in_are_installed_from_where_this_copy_came(
    origin: dict[str, object], command: str, plug_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my copy").mkdir()
    (tmp_path / "ladder_sim-1-py3-none-any.whl").touch()
    origin_text, command, plug_in = (
        text.replace("{there}", str(tmp_path)) for text in (json.dumps(origin), command, plug_in)
    )
    copy = SimpleNamespace(read_text=lambda _: origin_text if origin else None)
    monkeypatch.setattr("importlib.metadata.distributions", lambda **_: [copy])
    monkeypatch.setattr("shutil.which", lambda _: str(Path(sys.executable).with_name("pip")))
    assert install_command("explorer") == command
    assert install_command(plug_in="p") == plug_in
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert install_command("explorer").endswith(f"{Path(sys.executable).name} -m {command}")


def test_a_missing_base_package_exits_4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "simpy" else real(name))
    ran = run("doctor")
    assert ran.code == 4
    assert "simpy MISSING" in ran.out
    assert re.search(f"predictions +simpy is not installed +{re.escape(install_command())}", ran.out)
    assert not re.search(r"^predict, sweep, .* yes$", ran.out, re.M)


def test_an_unreadable_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> NoReturn:
        raise ProfileError(f"profile '{name}' lacks 'gemm'", hint="re-create it")

    monkeypatch.setattr("ladder_sim.costs.profile_file.load_profile", refuse)
    report = doctor.examine(())
    assert set(report.profiles.values()) == {"cannot be read"}
    assert any(problem.what == "profile h100-sxm" and "lacks" in problem.why for problem in report.problems)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = "NVIDIA H100 80GB HBM3, 81559 MiB, 550.54\n"
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor, "_output", lambda command, _: smi if "nvidia-smi" in command[0] else None)
    report = doctor.examine(())
    assert report.gpus == ("NVIDIA H100 80GB HBM3, 81559 MiB, 550.54",)
    assert any("one GPU" in problem.why for problem in report.problems)
    assert not any("no NVIDIA GPU" in problem.why for problem in report.problems)


def test_torch_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "2.6.0")
    for said in (None, "", "no json", "[]"):
        monkeypatch.setattr(doctor, "_output", lambda command, seconds, said=said: said)
        assert any("does not start" in problem.why for problem in doctor.examine(()).problems)
    gpu = '{"cuda": "12.4", "devices": ["NVIDIA A100", "NVIDIA A100"], "gloo": true, "nccl": true}'
    monkeypatch.setattr(doctor, "_output", lambda command, _: None if "nvidia-smi" in command[0] else f"hello\n{gpu}")
    report = doctor.examine(())
    assert report.gpus == ("NVIDIA A100", "NVIDIA A100")
    check("doctor", json.loads(run("doctor", "--json").out))
    assert not any("GPU" in problem.what for problem in report.problems)


@pytest.mark.slow
def test_torch_is_never_imported() -> None:
    code = (
        "import sys\nfrom ladder_sim.cli.main import main\nmain(['doctor'])\n"
        "assert 'torch' not in sys.modules\nassert 'pyarrow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPO)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_as_a_user_runs_it() -> None:
    ran = process("doctor", COLUMNS="80")
    assert ran.code == 0
    assert "Traceback" not in ran.err
