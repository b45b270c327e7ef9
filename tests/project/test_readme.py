"""The pages that a user meets first show commands that work; `test_docs.py` checks the outputs that they show."""

import json
import re
import shlex
from pathlib import Path

import pytest

from ladder_sim.specs import catalog
from tests.conftest import REPO
from tests.support import support_matrix
from tests.support.commands import run

QUESTIONS = sorted(path.relative_to(REPO).as_posix() for path in (REPO / "docs" / "questions").glob("*.md"))
FIRST = ("README.md", "docs/index.md", "docs/start.md", *QUESTIONS)


def commands() -> list[str]:
    """Every `ladder-sim` line of these pages without its output, without comments and files that only a user has."""
    lines = [line for page in FIRST for line in (REPO / page).read_text("utf-8").splitlines()]
    shown = {
        line.split("#")[0].strip() for line in lines if line.startswith("    ladder-sim ") and "path/to" not in line
    }
    # a server runs until it is stopped: tests/cli/test_explore.py
    return sorted(line for line in shown if not line.startswith("ladder-sim explore"))


def test_the_pages_have_commands() -> None:
    assert "ladder-sim predict --explain" in commands()
    assert len(commands()) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # some write files
    monkeypatch.chdir(tmp_path)
    ran = run(*shlex.split(command)[1:])
    assert ran.code == 0, ran.err
    assert ran.out


def test_the_table_is_what_the_commands_print() -> None:
    page = (REPO / "docs" / "questions" / "ladder-pays.md").read_text("utf-8")
    rows = re.findall(r"^\| `(--model .*?)` \| (.+?) \| (.*?) ?\|$", page, re.MULTILINE)
    assert len(rows) >= 5
    for flags, speedup, unchecked in rows:
        answer = json.loads(run("predict", *shlex.split(flags), "--json").out)
        ladder = answer["variants"]["ladder"]
        low, high = ladder["speedup_low"], ladder["speedup_high"]
        assert f"{ladder['speedup']:.2f} ({low:.2f}-{high:.2f})" == speedup
        missing = [name.replace("_", " ") for name, checked in answer["validated"].items() if not checked]
        assert ", ".join(missing).replace("gpu", "GPU").replace("tp", "TP") == unchecked


def test_an_error_in_a_table_is_on_the_page_that_its_row_links() -> None:
    """No claim without a number and a link to how it was obtained."""
    rows = [line for line in (REPO / "README.md").read_text("utf-8").splitlines() if re.match(r"\|.*%", line)]
    assert len(rows) >= 3
    for row in rows:
        (linked,) = re.findall(r"\]\(([^)#]+)", row)
        text = (REPO / linked).read_text("utf-8").replace(" %", "%")
        for error in re.findall(r"[\d.]+ %", row):
            assert error.replace(" %", "%") in text, row


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https:)([^)#]+)#?([^)]*)\)", (REPO / "README.md").read_text("utf-8"))
    assert len(links) >= 10
    for file, section in links:
        assert (REPO / file).is_file(), file
        # of a picture, the scheme that shows it
        if section and not section.endswith("-mode-only"):
            headings = re.findall(r"^#+ (.*)$", (REPO / file).read_text("utf-8"), re.MULTILINE)
            assert section in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_is_supported_is_what_the_catalog_has() -> None:
    text = (REPO / "README.md").read_text("utf-8")
    assert f"{len(catalog.model_names())} decoders" in text
    (listed,) = re.findall(r"\*\*GPUs\*\*: (.*)", text)
    names = [catalog.cluster(name).gpu.name for name in catalog.cluster_names()]
    assert all(any(name.startswith(each) for each in re.split("[,;] ", listed)) for name in names)
    assert support_matrix.table() in text, "python -m tests.support.support_matrix writes it"
