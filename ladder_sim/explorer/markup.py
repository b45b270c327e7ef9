"""Components as HTML text, which a page inserts at once, while Dash would mount and watch each of them."""

from collections.abc import Mapping
from html import escape

from dash.development.base_component import Component

_NAMES = {"className": "class", "htmlFor": "for", "tabIndex": "tabindex"}


def markup(component: object) -> str:
    """Return the HTML of a component, a text, or a list of both; text in it stays text.

    Examples
    --------
    >>> from dash import html
    >>> markup([html.P("a < b", className="note"), html.Span(style={"width": "5%", "color": "red"})])
    '<p class="note">a &lt; b</p><span style="width: 5%; color: red"></span>'
    """
    if isinstance(component, list | tuple):
        return "".join(map(markup, component))
    if not isinstance(component, Component):
        return "" if component is None else escape(str(component))
    plain = component.to_plotly_json()
    attributes = dict(plain["props"])
    inner = markup(attributes.pop("children", None))
    tag = plain["type"].lower()
    written = "".join(f' {_NAMES.get(name, name)}="{escape(_text(value))}"' for name, value in attributes.items())
    return f"<{tag}{written}>{inner}</{tag}>"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {part}" for name, part in value.items())
    return str(value)
