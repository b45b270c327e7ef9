"""The page as a folder: answers of the command line, and no server."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from ladder_sim import Scenario, predict
from ladder_sim.explorer.export import zipped
from ladder_sim.explorer.views import VIEWS
from tests.support.commands import run
from tests.support.html_text import texts

pytestmark = pytest.mark.slow

# of a folder that any static host serves
MOST_BYTES = 6_000_000


def test_the_folder_is_small_and_whole(exported: Path) -> None:
    files = {file.name: file.stat().st_size for file in exported.iterdir()}
    assert set(files) == {"index.html", "page.css", "page.js", "plotly.min.js", "answers.js"}
    assert sum(files.values()) <= MOST_BYTES
    page = (exported / "index.html").read_text("utf-8")
    # all that it loads lies next to it
    for name in ("page.css", "page.js", "answers.js"):
        assert f'"{name}"' in page
    assert "http" not in page.replace("https://arxiv.org/abs/2501.06589", "")


def test_its_answers_are_those_of_the_command_line(exported: Path) -> None:
    text = (exported / "answers.js").read_text("utf-8")
    held = json.loads(text.removeprefix("window.LADDER_ANSWERS = ").removesuffix(";\n"))
    own = "model=8b&tp=2&concurrency=64&stack=vllm"
    assert {f"{name}?{own}" for name in VIEWS if name != "fleet"} <= set(held["panels"])
    # another load, another engine with another load, another model on the same GPUs
    for query, scenario in {
        own: Scenario(model="8b", tp=2, concurrency=64, stack="vllm"),
        "model=8b&tp=2&concurrency=8&stack=vllm": Scenario(model="8b", tp=2, concurrency=8, stack="vllm"),
        "model=8b&tp=2&concurrency=16&stack=sglang": Scenario(model="8b", tp=2, concurrency=16, stack="sglang"),
        "model=qwen3-32b&concurrency=64&stack=vllm": Scenario(model="qwen3-32b", concurrency=64, stack="vllm"),
    }.items():
        (reply,) = (each for key, each in held["replies"].items() if sorted(key.split("&")) == sorted(query.split("&")))
        ladder = predict(scenario)["ladder"].speedup
        shown = f"{ladder.value:.2f} {ladder.low:.2f}\N{EN DASH}{ladder.high:.2f}"
        assert shown in texts(reply["parts"]["answer"]).replace(" \N{EN DASH} ", "\N{EN DASH}")


def test_a_page_is_also_one_archive() -> None:
    files = {"index.html": b"<p>", "page.js": b"1"}
    with zipfile.ZipFile(io.BytesIO(zipped(files))) as archive:
        assert {name.partition("/")[2]: archive.read(name) for name in archive.namelist()} == files


def test_a_question_without_an_answer_is_not_exported(tmp_path: Path) -> None:
    ran = run("explore", "--model", "405b", "--export", str(tmp_path / "page"))
    assert ran.code != 0
    assert "405b needs" in ran.err
    assert not (tmp_path / "page").exists()
    file = tmp_path / "file"
    file.touch()
    assert "must be a folder" in run("explore", "--export", str(file)).err
