"""The web page of a cross-check."""

from html import escape

from ladder_sim.report.figures.crosscheck import error_figure
from ladder_sim.report.figures.page import figure_html, page
from ladder_sim.report.tables.crosscheck import COLUMNS, Result, fitted_to, rows_of, title, verdict


def crosscheck_page(result: Result) -> str:
    """The page of a cross-check; it needs no network."""
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n" for cells in rows_of(result)
    )
    style = (
        "body{font:15px/1.45 Helvetica,Arial,sans-serif;max-width:1280px;margin:2em auto;color:#262626}"
        "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right}"
        "td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}tr:nth-child(even){background:#f5f5f5}"
    )
    body = (
        "<h1>Predicted and measured on one machine</h1>\n"
        f"<p>{escape(title(result)).replace(chr(10), '<br>')}</p>\n<p><b>{escape(verdict(result))}</b></p>\n"
        f"{figure_html(error_figure(result))}\n<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>\n"
        f"<p>{escape(fitted_to(result))}</p>"
    )
    return page("Cross-check", body, style)
