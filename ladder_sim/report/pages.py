"""Results as HTML pages."""

from html import escape

from ladder_sim.report.figures.crosscheck import error_figure
from ladder_sim.report.tables.crosscheck import COLUMNS, Result, calibrated_on, rows_of, title, verdict


def crosscheck_page(result: Result) -> str:
    """The page of a cross-check; it needs no network."""
    plot = error_figure(result).to_html(full_html=False, include_plotlyjs=True, div_id="errors")
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n" for cells in rows_of(result)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Cross-check</title><style>'
        "body{font:15px/1.45 Helvetica,Arial,sans-serif;max-width:1280px;margin:2em auto;color:#262626}"
        "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right}"
        "td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}tr:nth-child(even){background:#f5f5f5}"
        "</style></head><body>\n<h1>Predicted and measured on one machine</h1>\n"
        f"<p>{escape(title(result)).replace(chr(10), '<br>')}</p>\n<p><b>{escape(verdict(result))}</b></p>\n"
        f"{plot}\n<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n"
        f"<p>{escape(calibrated_on(result))}</p>\n</body></html>\n"
    )
