"""Measured servings, served request by request, agree with the closed form; the page shows the table of all."""

from collections.abc import Sequence

import pytest

from benchmarks.served_loads import _HEAD, _TABLE, Compared, compare, section
from ladder_sim.validation.serving_table import Serving, read_servings
from tests.conftest import REPO, SHIPPED

FILE = SHIPPED / "serving-dense.csv"


def rows(*engines: str) -> Sequence[Serving]:
    """Those with few requests in flight, which take a second."""
    servings = read_servings(FILE.read_bytes(), FILE.name)
    return [row for row in servings if row.concurrency <= 16 and row.setup.stack.startswith(engines)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "trtllm", "sglang"])
def test_serving_request_by_request_agrees_with_the_closed_form(engine: str) -> None:
    compared, missing = compare(rows(engine))
    assert compared
    assert not missing
    assert sum(abs(each.apart) for each in compared) / len(compared) < 0.03


def compared_row(concurrency: int, tpot_s: float) -> Compared:
    row = next(iter(rows("vllm")))
    served = Serving(
        **{name: getattr(row, name) for name in ("line", "setup", "prompt", "gen")},
        concurrency=concurrency,
        ttft_s=0.2,
        tpot_s=0.02,
    )
    return Compared(serving=served, ttft_s=0.1, tpot_s=tpot_s, closed_tpot_s=0.02)


def test_the_table_sums_up_by_engine_and_by_requests_in_flight() -> None:
    text = section([compared_row(4, 0.021), compared_row(64, 0.019)])
    assert "| all | 2 | 5.0 % | 5.0 % | 5.0 % | 5.0 % | 5.0 % | 0.0 % |" in text
    assert "| vllm | 2 |" in text
    assert "| 1 to 8 in flight | 1 |" in text
    assert "with at most 4 in flight, and with more: vllm 50 % (1 rows), 50 % (1 rows)." in text


def test_the_page_has_the_table() -> None:
    page = (REPO / "docs" / "load.md").read_text("utf-8")
    assert page.count(_HEAD) == 1
    assert _TABLE.search(page)
