"""Links that leave docs/: on the site, the files of the repository that they name are pages below ``repository/``.

In the repository they are plain links, ``../CHANGELOG.md`` or ``../ladder_sim/units.py``, and work as such.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPO = Path(__file__).resolve().parents[2]
_FOLDER = "repository/"
# the target of a link or picture, without its anchor: ](target#anchor "title")
_TARGET = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)[^)\s#]+")
# a link that is called as the file of its page, which has another name on the site
_BY_FILE = re.compile(r"\[([\w-]+\.md)\]\(((?:[\w./-]*/)?\1)(?=[)#])")
# text that a page shows, by ending, in the language that colours it
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".js": "javascript", "": "text"}
_CODE_PAGE = """---
search:
  exclude: true
---

# {name}

```{language} linenums="1"
{text}
```
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, and those that these link to."""
    waiting = [(_repository_path(page.src_uri), page.content_string) for page in files.documentation_pages()]
    waiting += [(path, (REPO / path).read_text("utf-8")) for path in ("CHANGELOG.md", "CONTRIBUTING.md")]
    added = {path: _file(path, config) for path, _ in waiting if not path.startswith("docs/")}
    while waiting:
        path, text = waiting.pop()
        for target in _outside(path, text):
            if target not in added:
                added[target] = _file(target, config)
                if target.endswith(".md"):
                    waiting.append((target, (REPO / target).read_text("utf-8")))
    for file in added.values():
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links between the site's pages, with their titles."""
    place = page.file.src_uri
    path = _repository_path(place)
    if not (REPO / path).is_file():
        # code, whose brackets are no links
        return markdown

    def on_site(link: re.Match[str]) -> str:
        target = _target(path, link[0])
        if path.startswith("docs/") and target.startswith("docs/"):
            return link[0]
        return posixpath.relpath(_site_path(target), posixpath.dirname(place))

    def titled(link: re.Match[str]) -> str:
        (heading,) = re.findall(r"\A# (.+)$", (REPO / _target(path, link[2])).read_text("utf-8"), re.MULTILINE)
        return f"[{heading}]({link[2]}"

    return _TARGET.sub(on_site, _BY_FILE.sub(titled, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that a browser would load something for from elsewhere."""
    loads = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(https?://[^\"\s>]+)", output)
    if loads:
        raise PluginError(f"{page.file.src_uri} loads {', '.join(loads)}: the site has to work offline")
    return output


def _outside(path: str, text: str) -> Iterator[str]:
    """Files outside docs/ that a page links to."""
    for link in _TARGET.findall(text):
        target = _target(path, link)
        if not target.startswith("docs/") and (REPO / target).is_file():
            yield target


def _target(path: str, link: str) -> str:
    """Path in the repository of what a file there links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _repository_path(place: str) -> str:
    """Path in the repository of a page."""
    return place.removeprefix(_FOLDER) if place.startswith(_FOLDER) else f"docs/{place}"


def _site_path(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    is_shown = not path.endswith(".md") and posixpath.splitext(path)[1] in _LANGUAGES
    return f"{_FOLDER}{path}{'.md' if is_shown else ''}"


def _file(path: str, config: MkDocsConfig) -> File:
    place, ending = _site_path(path), posixpath.splitext(path)[1]
    if not place.endswith(".md"):
        return File.generated(config, place, abs_src_path=str(REPO / path))
    text = (REPO / path).read_text("utf-8")
    if ending == ".md":
        return File.generated(config, place, content=text)
    shown = _CODE_PAGE.format(name=posixpath.basename(path), language=_LANGUAGES[ending], text=text.rstrip())
    return File.generated(config, place, content=shown)
