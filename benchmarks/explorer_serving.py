"""Requests under load in the explorer: what the server takes for a move of the rate, and how soon curves are there.

Exits with 1 if the median of the server misses `BOUND_MS`.
"""

import statistics
import sys
import time
from typing import Any

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.server import make_app
from tests.support.explorer_client import Page

BOUND_MS = 100.0
SCENARIOS = ("model=70b&stack=vllm", "model=405b&nodes=2&stack=vllm&ttft_p95=2s&tpot_p95=60ms")
MOVES, TICK_S = 15, 0.2


def view(page: Page, query: str) -> tuple[dict[str, Any], float]:
    """What the page gets, and the milliseconds that it takes."""
    begin_s = time.perf_counter()
    answer = page.ask("load-result.children", query)
    return answer, 1e3 * (time.perf_counter() - begin_s)


def curves_s(page: Page, query: str, spent_ms: list[float]) -> float:
    """Seconds until the first curves; waits for the rest."""
    begin_s, shown_s = time.perf_counter(), 0.0
    while True:
        answer, took_ms = view(page, query)
        spent_ms.append(took_ms)
        if not shown_s and answer.get("load-views", {}).get("hidden") is False:
            shown_s = time.perf_counter() - begin_s
        if answer["load-clock"]["disabled"]:
            return shown_s
        time.sleep(TICK_S)


def main() -> int:
    page, late = Page(make_app(Allowlist.of()).server.test_client()), False
    for scenario in SCENARIOS:
        page.ask("answer.data", scenario)
        moves = [view(page, f"{scenario}&rate={4 + 0.5 * move:g}")[1] for move in range(MOVES)]
        news: list[float] = []
        cold_s, warm_s = (curves_s(page, f"{scenario}&rate={rate}", news) for rate in (11, 12.5))
        late |= max(map(statistics.median, (moves, news))) > BOUND_MS
        medians = " and ".join(f"{statistics.median(each):.0f} ms" for each in (moves, news))
        print(f"{scenario}: a move and what is new {medians}; curves {cold_s:.1f} s, of another rate {warm_s:.1f} s")
    if late:
        print(f"MISSED: the bound is {BOUND_MS:.0f} ms")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
