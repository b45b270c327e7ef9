"""Equations as MathML, which browsers show by themselves: ``$x$`` in a line, ``$$ x $$`` in a paragraph of its own."""

import re

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_BLOCK = re.compile(r"^\$\$(.+?)\$\$$", re.MULTILINE | re.DOTALL)
# as pandoc does: no space inside, no digit behind, so that prices are not taken for equations
_INLINE = r"(?<![\\$\w])\$(?![\s$])([^$]*[^\s\\$])\$(?![\d$])"
# before a backslash escapes the character after it, behind code
_PRIORITY = 185


class _Inline(InlineProcessor):
    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        return self.md.htmlStash.store(convert(match[1])), match.start(), match.end()


class Equations(Extension):
    """Equations inside a line."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Add them to what a line may hold."""
        md.inlinePatterns.register(_Inline(_INLINE, md), "equation", _PRIORITY)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have pages read with equations."""
    config.markdown_extensions.append(Equations())
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put MathML in the place of equations in paragraphs of their own."""
    return _BLOCK.sub(
        lambda latex: f'<div class="equation" tabindex="0">{convert(latex[1].strip(), display="block")}</div>', markdown
    )
