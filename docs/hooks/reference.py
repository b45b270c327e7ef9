"""Lists of the reference that code knows best: commands with their options, and settings.

A page has ``<!-- commands -->`` or ``<!-- settings -->`` where the site shows the list.
"""

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ladder_sim_calibration.__main__
import ladder_sim_runtime.commands
from ladder_sim.cli.commands import program
from ladder_sim.cli.flags import knob_rows
from ladder_sim.report.settings import settings_rows
from ladder_sim.specs.arguments import DEFAULTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import described

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# commands with options that the runtime reads: its commands, each with what it is for
_RUNTIME: Mapping[str, Mapping[str, str]] = {
    "run": {"bench": "With `--bench`", "complete": "With `--prompt` or `--tokens`"},
}
_SECTIONS = {
    "model": "Model",
    "gpu": "GPU",
    "cluster": "Cluster",
    "intra": "Links in a node",
    "inter": "Links between nodes",
    "host": "Links through host memory, without peer-to-peer",
    "stack": "Stack",
    "workload": "Workload",
}


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Put the lists in their places."""
    for place, lines in _LISTS.items():
        if place in markdown:
            markdown = markdown.replace(place, "\n".join(lines()))
    return markdown


def commands() -> Iterator[str]:
    """Every command: what it does, and its options in groups."""
    runtime_parsers = _members(ladder_sim_runtime.commands.argument_parser())
    calibration_parsers = _members(ladder_sim_calibration.__main__.argument_parser())
    for name, command in program().commands.items():
        yield from _heading(2, name, command.help)
        yield from _typer_options(command)
        own = {option for each in command.params for option in each.opts}
        for other, title in _RUNTIME.get(name, {}).items():
            yield from _heading(3, title) if title else ()
            yield from _argparse_options(runtime_parsers[other], name, own)
        for member, each in getattr(command, "commands", {}).items():
            called = f"{name} {member}"
            yield from _heading(3, called, each.help)
            yield from _typer_options(each)
            if name == "calibrate":
                yield from _argparse_options(calibration_parsers[member], called)


def _heading(level: int, title: str, text: str | None = None) -> Sequence[str]:
    return ("#" * level + f" {title}", "", text or "", "")


def _typer_options(command: Any) -> Iterator[str]:
    context = command.context_class(command)
    rows: dict[str, list[tuple[str, str]]] = {}
    for each in command.params:
        if not each.hidden and "--help" not in each.opts:
            rows.setdefault(each.rich_help_panel or "", []).append(each.get_help_record(context))
    if rows:
        # a page of all commands is short that way, and a search of the browser's opens what it finds
        yield from ('<details markdown="1">', "<summary>Options</summary>", "")
        for panel, own in rows.items():
            yield from _table(panel, own)
        yield from ("</details>", "")


def _argparse_options(parser: argparse.ArgumentParser, called: str, without: Collection[str] = ()) -> Iterator[str]:
    # argparse names what it holds with an underscore
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, member in action.choices.items():
                    yield from _heading(4, f"{called} {name}")
                    yield from _argparse_options(member, f"{called} {name}")
            elif action.help not in (None, argparse.SUPPRESS) and not {"--help", *without} & {*action.option_strings}:
                value = "" if action.nargs == 0 else formatter._format_args(action, action.dest.upper())
                rows.append((f"{', '.join(action.option_strings)} {value}".strip(), formatter._expand_help(action)))
        is_named = group.title not in ("options", "positional arguments")
        yield from _table(str(group.title).capitalize() if is_named else "", rows)


def _members(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Its commands."""
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def settings() -> Iterator[str]:
    """Every setting by section, with the value that the default scenario uses."""
    known = described()
    rows = settings_rows(Scenario(model=DEFAULTS["model"], cluster=DEFAULTS["cluster"], tp=1))
    for section, title in _SECTIONS.items():
        yield from _heading(3, title)
        own = [row[:3] for row in rows if row[0].startswith(f"{section}.")]
        has_units = any(known[name].unit for name, *_ in own)
        yield from _table(
            "",
            [(name, *([known[name].unit] if has_units else []), *texts, known[name].meaning) for name, *texts in own],
            ("setting", *(["SI unit"] if has_units else []), "default", "range", "meaning"),
        )
    yield from _heading(3, "Parameters of commands that have no flag")
    yield from _table("", knob_rows(), ("name", "default", "meaning", "commands"))


def _table(title: str, rows: Sequence[Sequence[str]], columns: Sequence[str] = ("option", "meaning")) -> Iterator[str]:
    """Yield the lines of a table whose first column is code; nothing if it has no rows."""
    if not rows:
        return
    if title:
        yield from (f"**{_plain(title)}**", "")
    yield from (_line(columns), _line("---" for _ in columns))
    yield from (_line((f"<code>{_plain(name)}</code>", *map(_text, texts))) for name, *texts in rows)
    yield ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("\n", " ")


def _text(text: str) -> str:
    """Text with code between backticks, in a cell."""
    return "".join(part if part.startswith("`") else _plain(part) for part in re.split("(`[^`]*`)", text))


def _plain(text: str) -> str:
    """Text without what Markdown and HTML would read otherwise."""
    return re.sub(r"[&<>*_|[`]", lambda character: f"&#{ord(character[0])};", text)


_LISTS: Mapping[str, Callable[[], Iterator[str]]] = {"<!-- commands -->": commands, "<!-- settings -->": settings}
