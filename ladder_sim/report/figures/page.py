"""Web pages with a figure, which need no network and which a screen reader can read."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go


def page(title: str, body: str, style: str = "") -> str:
    """Return a whole HTML document."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def figure_html(figure: "go.Figure") -> str:
    """Return a figure as part of an HTML document, always under one name, so that equal figures make equal files."""
    html: str = figure.to_html(full_html=False, include_plotlyjs=True, div_id="figure", config={"displaylogo": False})
    return html


def figure_page(figure: "go.Figure") -> str:
    """Return an HTML document with a figure that fills the window."""
    # without the subtitle
    title = figure.layout.title.text.partition("<br>")[0]
    return page(title, figure_html(figure), "html,body{height:100%}")
