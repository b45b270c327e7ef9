"""What the site lists is all there is: commands and their options, settings, public names of Python."""

import argparse
import importlib.util
import re
from types import ModuleType

import pytest

import ladder_sim
import ladder_sim.serving
import ladder_sim_calibration.__main__ as calibration
import ladder_sim_runtime.commands as runtime
from ladder_sim.cli.flags import knob_rows
from ladder_sim.specs.settings import settable
from tests.conftest import REPO
from tests.support.commands import run

DOCS = REPO / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The hook that makes the lists, which needs nothing of mkdocs to do so."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "hooks" / "reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def members(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Commands of a parser, by name."""
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(next(actions).choices)


def test_every_command_is_listed_with_every_option(reference: ModuleType) -> None:
    sections = re.split(r"^##+ ", "\n".join(reference.commands()), flags=re.MULTILINE)
    listed: dict[str, str] = {}
    for section in sections[1:]:
        title, _, text = section.partition("\n")
        # what belongs to a command has a heading of its own
        key = title if not title.startswith("With ") else next(reversed(listed))
        listed[key] = listed.get(key, "") + text
    shown = {name: run(*name.split(), "--help").out for name in ("predict", "serve", "trace info")}
    # of those that another package reads, as its own help has them
    runtime_parsers, calibration_parsers = map(members, (runtime.argument_parser(), calibration.argument_parser()))
    shown |= {"run": runtime_parsers["complete"].format_help() + runtime_parsers["bench"].format_help()}
    shown |= {f"calibrate {name}": calibration_parsers[name].format_help() for name in ("run", "fit", "show")}
    for name, text in shown.items():
        assert options(text) - {"--help"} <= options(listed[name].replace("&#95;", "_")), name
    helped = run("--help").out
    assert all(f" {name} " in helped for name in listed if " " not in name)


def test_every_setting_is_listed_with_its_range(reference: ModuleType) -> None:
    rows = [line.split(" | ") for line in reference.settings() if line.startswith("| <code>")]
    names = [re.sub("</?code>", "", row[0].removeprefix("| ")).replace("&#95;", "_") for row in rows]
    assert sorted(name for name in names if "." in name) == settable()
    assert {name for name in names if "." not in name} == {name for name, *_ in knob_rows()}
    assert all(row[-2] and row[-3] for row in rows)


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "python.md").read_text("utf-8")
    listed = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    public = {f"ladder_sim.{name}" for name in ladder_sim.__all__ if name != "__version__"}
    public |= {f"ladder_sim.serving.{name}" for name in ladder_sim.serving.__all__}
    assert public <= listed
