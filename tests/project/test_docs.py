"""The README and the pages of the documentation show what their commands print."""

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

import ladder_sim_calibration.__main__
import ladder_sim_runtime.commands
from ladder_sim.cli.commands import program
from ladder_sim.cli.flags import knobs_of
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.settings import find_setting
from tests.conftest import REPO
from tests.support.shown import PAGES, PYTHON_PAGES, blocks, output, with_outputs

SHOWN = [(page, *block) for page in PAGES for block in blocks(page)]


def test_the_pages_show_every_command() -> None:
    assert {command.split()[1] for _, command, _ in SHOWN} == {
        "predict",
        "sweep",
        "breakeven",
        "sensitivity",
        "advise",
        "compare",
        "serve",
        "capacity",
        "validate",
        "list",
        "versus",
        "trace",
    }


@pytest.mark.parametrize(("page", "command", "shown"), SHOWN, ids=[command for _, command, _ in SHOWN])
def test_the_output_is_what_the_command_prints(page: str, command: str, shown: str) -> None:
    """`python -m tests.support.shown` refreshes the pages."""
    assert shown == output(command, shown)


# commands that the tests have no machine for
_RUNTIME, _CALIBRATION = "ladder_sim_runtime", "ladder_sim_calibration"
_TYPED = re.compile(
    rf"^    (?:\$ |\[[\w-]+\] +)?(?:ladder-sim (?:run|calibrate)|.*-m (?:{_RUNTIME}|{_CALIBRATION})) .*", re.MULTILINE
)


def typed(page: str) -> Iterator[list[str]]:
    """Commands of the runtime and of calibration on a page, each from that name on."""
    text = (REPO / page).read_text("utf-8").replace("\\\n", " ")
    for name, value in re.findall(r'^    (\w+)="(.*)"$', text, re.MULTILINE):
        text = text.replace(f"${name}", value)
    for line in _TYPED.findall(text):
        # the last word of a batch job ends its quotation
        words = shlex.split(line.replace("'", ""), comments=True)
        first = next(at for at, word in enumerate(words) if word in ("run", "calibrate", _RUNTIME, _CALIBRATION))
        yield words[first:]


def of_runtime(words: list[str]) -> list[str]:
    """The command of the runtime that `ladder-sim run` makes of its own, without what it resolves itself."""
    given = [at for at, word in enumerate(words) if word in ("--stack", "--set")]
    left = [
        word
        for at, word in enumerate(words)
        if at not in given and at - 1 not in given and word not in ("--bench", "--json")
    ]
    return ["bench", "--variant=ladder", *left] if "--bench" in words else ["complete", *left]


@pytest.mark.parametrize("page", ["README.md", "docs/calibrate.md", "docs/runtime.md"])
def test_commands_that_need_other_machines_have_the_options_that_they_show(page: str) -> None:
    commands = list(typed(page))
    assert commands
    for command, *words in commands:
        if command in ("calibrate", _CALIBRATION):
            ladder_sim_calibration.__main__.argument_parser().read(words)
        else:
            ladder_sim_runtime.commands.argument_parser().read(words if command == _RUNTIME else of_runtime(words))


# commands of ladder-sim that read no options of their own alone, and where the others are read
_PASSED_ON = {
    "run": (" complete", " bench"),
    "trace capture": (" bench",),
}


def options() -> dict[str, set[str]]:
    """Options of each command of `ladder-sim`, by its words: "serve", "calibrate import nccl-tests"."""
    known: dict[str, set[str]] = {}

    def of_parser(name: str, parser: argparse.ArgumentParser) -> None:
        known[name] = known.get(name, set()) | set(parser._option_string_actions)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for member, each in action.choices.items():
                    of_parser(f"{name} {member}", each)

    main = program()
    for name, command in main.commands.items():
        members = {name: command, **{f"{name} {each}": sub for each, sub in getattr(command, "commands", {}).items()}}
        known |= {words: {option for each in sub.params for option in each.opts} for words, sub in members.items()}
    of_parser("calibrate", ladder_sim_calibration.__main__.argument_parser())
    of_parser("", ladder_sim_runtime.commands.argument_parser())
    for name, others in _PASSED_ON.items():
        known[name] |= {option for other in others for option in known[other]}
    everywhere = {"--help", *(option for each in main.params for option in each.opts)}
    return {name: each | everywhere for name, each in known.items() if name[:1] not in (" ", "")}


# a command in a sentence, or on a line of its own
_MENTIONED = re.compile(r"(?:`|^    (?:\$ |\[[\w-]+\] +)?)(ladder-sim )?([a-z][^`\n|;&#]*)", re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(path.relative_to(REPO)) for path in (REPO / "docs").rglob("*.md"))]
)
def test_a_page_promises_no_option_that_does_not_exist(page: str) -> None:
    """Of commands that are named in sentences, too: the table of files promised `capacity --trace`."""
    known = options()
    for prefix, mention in _MENTIONED.findall((REPO / page).read_text("utf-8").replace("\\\n", " ")):
        words = mention.split()
        command = next((" ".join(words[:count]) for count in (3, 2, 1) if " ".join(words[:count]) in known), "")
        assert command or not prefix, f"{page}: no command {mention}"
        if command:
            promised = {word.split("=")[0].rstrip(".,:") for word in words if re.match(r"--[a-z]", word)}
            assert promised <= known[command], f"{page}: {mention}"
            for name in re.findall(r"--set ([\w.-]+)=", mention):
                assert is_set(name, command), f"{page}: {mention}"


def is_set(name: str, command: str) -> bool:
    """Whether `--set` of a command knows a name."""
    rare = {each.name for each in ARGUMENTS.values() if not each.has_flag}
    return name.replace("-", "_") in {*rare, *knobs_of(command.split()[-1])} or find_setting(name) is not None


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_prints_what_is_shown(page: str) -> None:
    text = (REPO / page).read_text("utf-8")
    assert with_outputs(text) == text
    assert text.count("```python") == text.count("```text") >= 5


def test_each_study_is_listed_and_says_its_question_and_its_limits() -> None:
    """`make docs` runs them; prose with numbers is printed by their cells."""
    gallery = REPO / "docs" / "gallery"
    studies = sorted(gallery.glob("*.py"))
    assert len(studies) >= 8
    for study in studies:
        text = study.read_text("utf-8")
        assert f"](gallery/{study.name})" in (REPO / "docs" / "index.md").read_text("utf-8")
        for part in ("Question", "What was done", "What one sees", "What it does not show"):
            assert text.count(f"**{part}.**") == 1, f"{study.name}: {part}"


def test_prose_calls_a_model_by_one_name() -> None:
    """Llama 3.1 70B; with dashes it is an id of the Hugging Face Hub, or of one of its checkpoints."""
    pages = [REPO / "README.md", *(REPO / "docs").rglob("*.md"), *(REPO / "docs" / "gallery").glob("*.py")]
    assert len(pages) > 25
    for page in pages:
        assert not re.search(r"(?<!/)Llama-[0-9.]+-[0-9]+B(?!-)", page.read_text("utf-8")), page.name
