"""`ladder-sim explore` checks what it is given before a page opens."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

from ladder_sim.errors import install_command
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import State
from ladder_sim.specs import catalog
from tests.conftest import REPO
from tests.support.commands import heed_interrupts, run
from tests.support.waiting import HANG_S

FLAGS = ("--model", "405b", "--nodes", "2", "--set", "inter.bandwidth=100Gb/s", "--variant", "ladder")


@pytest.mark.slow
def test_it_listens_on_this_machine_and_starts_with_the_scenario() -> None:
    command = [sys.executable, "-m", "ladder_sim", "explore", *FLAGS, "--no-open", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=REPO, preexec_fn=heed_interrupts) as server:
        try:
            assert server.stderr is not None
            address = re.search(r"http://127\.0\.0\.1:\d+/", server.stderr.readline())
            assert address is not None
            with urllib.request.urlopen(address[0] + "_dash-layout", timeout=HANG_S) as answer:
                page = json.load(answer)
            start = next(one for one in page["props"]["children"] if one["props"].get("id") == "start")
            assert start["props"]["data"] == "model=405b&nodes=2&variants=ladder&inter.bandwidth=100Gb/s"
        finally:
            server.send_signal(signal.SIGINT)
            try:
                assert server.wait(timeout=HANG_S) == 0
            finally:
                server.kill()


def test_export_writes_a_page_without_addresses(tmp_path: Path) -> None:
    """Whatever plotly.js mentions, the page forbids itself to ask for anything."""
    file = tmp_path / "page.html"
    assert run("explore", *FLAGS, "--export", str(file)).code == 0
    page = file.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page[: page.index("<script>")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nope"), "unknown model 'nope'"),
        (("--set", "engine=des"), "unknown setting 'engine'"),
        (("--export", "page.pdf"), "must end in .html"),
        (("--set", "inter.fabric=x"), "cannot be set on a page"),
        (("--tp", "7"), "not divisible by tp 7"),
    ],
)
def test_mistakes_are_reported_before_a_page_opens(arguments: tuple[str, ...], message: str) -> None:
    ran = run("explore", "--no-open", *arguments)
    assert ran.code in (2, 3)
    assert message in ran.err


@pytest.mark.parametrize(
    ("folder", "shown"),
    [
        ("Llama 3 (chat)", "Llama 3 (chat)"),
        ("a<b>&c", "a-b--c"),
        ("\N{CYRILLIC SMALL LETTER EM}", "\N{CYRILLIC SMALL LETTER EM}"),
        ("'\" ~", "-- -"),
        ("m" * 200, "m" * 60),
    ],
)
def test_a_model_of_any_folder_is_shown(
    folder: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: what predict takes was refused for its name."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.json").write_text(json.dumps(catalog.model_config("8b")))
    queries: list[str] = []
    monkeypatch.setattr("ladder_sim.cli.explore._serve", lambda _, query, **__: queries.append(query))
    for command in ("predict", "explore"):
        ran = run(command, "--model", str(tmp_path / folder))
        assert ran.code == 0, ran.err
    assert State.parse(queries[0], Allowlist.of()).arguments["model"] == shown


def test_a_hugging_face_id_is_the_catalogs_model(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []
    monkeypatch.setattr("ladder_sim.cli.explore._serve", lambda _, query, **__: queries.append(query))
    assert run("explore", "--model", "meta-llama/Llama-3.3-70B-Instruct").code == 0
    assert queries == ["model=llama-3.1-70b"]


def test_without_dash_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladder_sim.cli.explore.find_spec", lambda name: None if name == "dash" else find_spec(name))
    ran = run("explore", "--no-open")
    assert ran.code == 4
    assert f"hint: {install_command('explorer')}, or --export page.html" in ran.err


@pytest.mark.parametrize("installed", [True, False])
def test_the_exported_page_holds_wirings_and_techniques(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a page saved from the explorer held them, one of the command did not; without dash none can."""
    if not installed:
        monkeypatch.setattr("ladder_sim.cli.explore.find_spec", lambda name: None)
    file = tmp_path / "page.html"
    assert run("explore", "--model", "8b", "--tp", "2", "--export", str(file)).code == 0
    assert ("id='versus-view'" in file.read_text(encoding="utf-8")) == installed
