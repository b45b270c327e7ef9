"""HTML from Python: tags whose text stays text."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """Return an element; strings in it are escaped, None and False are left out, lists are spread.

    An underscore in an attribute's name is a dash, one at its end is dropped; True is an attribute without a value.

    Examples
    --------
    >>> tag("p", "a < b", tag("br"), class_="note", aria_label="x", hidden=False)
    '<p class="note" aria-label="x">a &lt; b<br></p>'
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>" + ("" if name in _EMPTY else f"{join(content)}</{name}>"))


def join(content: object) -> Markup:
    """Return text, HTML or a nest of both as HTML; a line does not end between a number and its percent sign."""
    if content is None or content is False:
        return Markup()
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(escape(content).replace(" %", "\N{NO-BREAK SPACE}%"))
    if isinstance(content, Iterable):
        return Markup("".join(map(join, content)))
    return Markup(escape(str(content)))


# elements without an end
_EMPTY = frozenset({"br", "hr", "input", "link", "meta"})
