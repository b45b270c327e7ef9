"""The studies of docs/gallery as pages of the site, with what their cells print and draw.

A study is a notebook in the percent format, which jupytext and most editors open. It is run whenever the site is built,
in its own folder, so that its numbers are those of the code as it is. What it prints stands below the cell, its
matplotlib figures as SVG in the colours of the page; the name of a figure (`num`) is its caption. Tags of cells are
those of Jupyter Book: with ``hide-input`` the source is folded, with ``remove-input`` it is left out, and what the cell
prints is Markdown, which is how prose has computed numbers.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FOLDER = "gallery/"
# Of M. Okabe and K. Ito, "Color Universal Design", 2008, those that stand out from white and from black by 3 to 1.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
STYLE = {
    "figure.figsize": (6.2, 3.4),
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
    # text stays text: sharp, small, and found by a search
    "svg.fonttype": "none",
    "axes.prop_cycle": f"cycler('color', {COLOURS})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#8888884d",
    "legend.frameon": False,
}
FOLDED = """<details markdown="1">
<summary>Code</summary>

{}

</details>"""


class Study(File):
    """A page whose source is Python."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Make pages of the studies."""
    for file in list(files):
        if file.src_uri.startswith(FOLDER) and file.src_uri.endswith(".py"):
            files.remove(file)
            files.append(Study(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls))
    return files


def on_page_read_source(page: "Page", config: "MkDocsConfig") -> str | None:
    """Run a study; other pages are read as they are."""
    return markdown(Path(config.docs_dir, page.file.src_uri)) if isinstance(page.file, Study) else None


def markdown(study: Path) -> str:
    """Return a study with what its cells print and draw, as Markdown."""
    import matplotlib as mpl

    mpl.use("svg")
    names: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    with contextlib.chdir(study.parent), mpl.rc_context(STYLE):
        for header, source, line in cells(study.read_text("utf-8")):
            if "[markdown]" in header:
                parts.append(re.sub(r"^# ?", "", source, flags=re.MULTILINE))
                continue
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile("\n" * line + source, str(study), "exec"), names)
            printed = stdout.getvalue()
            if "remove-input" in header:
                parts.append(printed)
            else:
                code = f"```python\n{source}\n```"
                parts.append(FOLDED.format(code) if "hide-input" in header else code)
                parts += [f"```text\n{printed.rstrip()}\n```"] if printed else []
            parts += figures()
    return "\n\n".join(parts) + "\n"


def cells(text: str) -> Iterator[tuple[str, str, int]]:
    """Header and source of each cell, and the number of lines before it."""
    starts = [*re.finditer(r"^# %%(.*)\n", text, re.MULTILINE)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=True):
        yield start[1], text[start.end() : end].strip("\n"), text.count("\n", 0, start.end())


def figures() -> Iterator[str]:
    """Yield the figures that a cell has drawn, as SVG, and close them."""
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        figure = plt.figure(number)
        drawn = io.StringIO()
        # ids of clips and markers are hashes: others in each figure, the same in every build
        with plt.rc_context({"svg.hashsalt": figure.get_label()}):
            figure.savefig(drawn, format="svg")
        plt.close(figure)
        yield inline(drawn.getvalue(), figure.get_label())


def inline(svg: str, caption: str) -> str:
    """Return an SVG as part of a page: it scales, black is the text's colour, its styles and ids stay its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([\w-]+)"', lambda name: name[0] if name[1] in used else "", svg)
    svg = re.sub(r"#000000|\bblack\b", "currentColor", svg)
    svg = re.sub(r"(font: [\w. ]*?px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    # as wide as there is room, and 1.6 times as large as drawn at most
    svg = re.sub(
        r'<svg[^>]*width="([\d.]+)pt"[^>]*(viewBox="[^"]*")[^>]*>',
        lambda size: (
            f'<svg {size[2]} role="img" aria-label="{escape(caption)}" fill="currentColor" '
            f'width="{1.6 * float(size[1]):.0f}" style="max-width: 100%; height: auto" '
            'xmlns:xlink="http://www.w3.org/1999/xlink">'
        ),
        svg,
        count=1,
    )
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    return f"<figure>\n{svg}<figcaption>{escape(caption)}</figcaption>\n</figure>"
