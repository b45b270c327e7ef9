"""`ladder-sim explore` checks what it is given before a page opens."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

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
            with urllib.request.urlopen(address[0], timeout=HANG_S) as answer:
                page = answer.read().decode()
            state = json.loads(page.partition('id="state">')[2].partition("</script>")[0])
            assert state["reply"]["query"] == "model=405b&nodes=2&variants=ladder&inter.bandwidth=100Gb/s"
        finally:
            server.send_signal(signal.SIGINT)
            try:
                assert server.wait(timeout=HANG_S) == 0
            finally:
                server.kill()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nope"), "unknown model 'nope'"),
        (("--set", "engine=des"), "unknown setting 'engine'"),
        (("--export", "page.html"), "must be a folder"),
        (("--measured", "result.json"), "not a list of figures"),
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


def test_without_a_scenario_it_opens_with_an_engine_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []
    monkeypatch.setattr("ladder_sim.cli.explore._serve", lambda _, query, **__: queries.append(query))
    assert run("explore").code == 0
    assert run("explore", "--stack", "vllm", "--concurrency", "8", "--measured", "tpot=9ms").code == 0
    assert queries == ["stack=vllm&concurrency=64", "concurrency=8&stack=vllm&measured=tpot%3D9ms"]


def test_a_hugging_face_id_is_the_catalogs_model(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []
    monkeypatch.setattr("ladder_sim.cli.explore._serve", lambda _, query, **__: queries.append(query))
    assert run("explore", "--model", "meta-llama/Llama-3.3-70B-Instruct").code == 0
    assert queries == ["model=llama-3.1-70b"]
