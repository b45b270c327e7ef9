"""The page as a folder of files that any static host serves: its answers are made beforehand, as they are.

The folder holds the question that it was made for with all its views, and the answers of every question that is one
choice of a list away, and the requests in flight of each engine. Its script is the server's page's, with a table of
replies in the place of the server.
"""

import io
import json
import re
import zipfile
from contextlib import suppress
from importlib import resources
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.controls import question
from ladder_sim.explorer.markup import Markup
from ladder_sim.explorer.page import asset, banner, document, reply
from ladder_sim.explorer.state import PHASES
from ladder_sim.explorer.views import VIEWS
from ladder_sim.system.files import write_file

# views of another load of the same engine: what opens with an answer, quick to make and small
_BRIEFLY = ("timeline", "best-plan", "before")
# groups of the lists of a question: most are the same in every answer
_GROUP = re.compile(r"<optgroup.*?</optgroup>", re.DOTALL)


def plotly() -> bytes:
    """Return plotly.js."""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()


def folder(queries: Queries, query: str) -> dict[str, bytes]:
    """Return the files of a page for a query and its neighbours, by name.

    Raises LadderSimError if the query itself has no answer.
    """
    own = queries.question(query)
    queries.answer(own)
    prefill = queries.question(_changed(own, {"phase": PHASES[1]}))
    views = {**_neighbours(queries, own), own: tuple(VIEWS), prefill: ("timeline",)}
    replies = {each: reply(queries, each, held=views) for each in views}
    panels = {
        f"{name}?{each}": _panel(queries, name, each)
        for each, names in views.items()
        if not replies[each].parts["error"]
        for name in names
    }
    groups: dict[str, int] = {}

    def grouped(html: str) -> str:
        return _GROUP.sub(lambda found: f"<!{groups.setdefault(found[0], len(groups))}>", _short(html))

    plain = {
        each: {**told.plain, "parts": {name: grouped(html) for name, html in told.parts.items()}}
        for each, told in replies.items()
    }
    told_once = {"replies": plain, "panels": panels, "groups": list(groups)}
    held = json.dumps(told_once, separators=(",", ":"), ensure_ascii=False)
    page = document(replies[own], Markup(), scripts=("answers.js", "page.js"), exported=True)
    return {
        "index.html": page.encode(),
        "page.css": asset("page.css").encode(),
        "page.js": asset("page.js").encode(),
        "plotly.min.js": plotly(),
        # a script, so that the page also opens from a disk, where nothing may be fetched
        "answers.js": f"window.LADDER_ANSWERS = {held};\n".encode(),
    }


def _short(html: str) -> str:
    """Return HTML with quotes of one byte in JSON; an escaped text has none itself."""
    return html if "'" in html else html.replace('"', "'")


def _neighbours(queries: Queries, own: str) -> dict[str, tuple[str, ...]]:
    """Return the questions that one choice of a list leads to, and the loads of each engine, with their views."""
    lists = question(queries.setup(own), queries.allowlist)
    flying = [each for each in lists["Load"] if each.sets.get("concurrency")]
    found: dict[str, tuple[str, ...]] = {}
    for name, choices in lists.items():
        for each in choices:
            there = _changed(own, {**each.clears, **each.sets})
            for load in (*flying, None) if name == "Engine" else (None,):
                asked = _changed(there, {**load.clears, **load.sets}) if load else there
                # what has no answer is not offered
                with suppress(LadderSimError):
                    queries.answer(key := queries.question(asked))
                    found.setdefault(key, _BRIEFLY if name == "Load" else ())
    return found


def _changed(query: str, change: dict[str, str]) -> str:
    return urlencode({**dict(parse_qsl(query)), **change})


def _panel(queries: Queries, name: str, query: str) -> dict[str, object]:
    try:
        panel = VIEWS[name].panel(queries, queries.question(query))
    except LadderSimError as error:
        return {"html": banner(error), "figures": {}, "command": ""}
    return {"html": panel.html, "figures": panel.figures, "command": panel.command}


def write_folder(files: dict[str, bytes], target: Path) -> None:
    """Write the files of a page into a folder, made if it is not there; raise UsageError if that is not possible."""
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--export '{target}': {error.strerror}", hint="name a folder") from error
    for name, content in files.items():
        write_file(target / name, content)


def zipped(files: dict[str, bytes]) -> bytes:
    """Return the files of a page as one archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"ladder-sim/{name}", content)
    return packed.getvalue()
