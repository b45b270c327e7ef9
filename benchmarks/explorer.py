"""How fast the explorer is: its server for one reader and for twenty, under load, and its page in a headless Chromium.

    python -m benchmarks.explorer [server | load | page]

Readers drag a slider back and forth, send the newest position when the last is answered but at most every 60 ms, let go
after two seconds, draw the other views, and look at them for a second. Exits with 1 if a request fails or a bound is
missed. The page needs playwright, which the test extra installs, and Debian's chromium.
"""

import argparse
import http.client
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.support.explorer_client import Page

READERS, SECONDS = 20, 60.0
HEADLINE, VIEWS = "answer.data", ("curve", "timeline", "map", "pareto", "tornado")
# that another process computes: no bound, and fewer answers
IN_BACKGROUND = ("versus", "plans", "validation")
# of the median of a reader's answers, of the headline of nineteen readers in twenty with all of them dragging, of a
# move of the rate and what is new of requests under load, and from a move to the screen
BOUNDS_MS = {HEADLINE: 100.0, "views": 500.0, "crowd": 1500.0, "load": 100.0, "page": 250.0}
SPACING_S, DRAG_S, LOOK_S = 0.06, 2.0, 1.0
_ADDRESS = "explorer: http://127.0.0.1:"
_SCENARIOS = ("model=405b&nodes=2", "model=70b", "model=70b&stack=vllm", "model=8b&tp=4", "model=qwen3-32b&batch=16")
# name, middle of the scale and its unit
_SLIDERS = (("intra.bandwidth", 200, "GB/s"), ("intra.allreduce_floor", 10, "us"), ("gpu.hbm_bandwidth", 3, "TB/s"))
_UNDER_LOAD = ("model=70b&stack=vllm", "model=405b&nodes=2&stack=vllm&ttft_p95=2s&tpot_p95=60ms")
_SCREENS = {"laptop": (1440, 900), "phone": (390, 844)}
# shown when all views are
_LAST_VIEWS = ("#tornado .bars", "#map .hm")
_MOVE = """
(position) => new Promise((resolve) => {
  const slider = document.getElementById("c-inter-allreduce_floor-slider");
  const chart = document.querySelector("#breakdown .js-plotly-plot");
  const begin = performance.now();
  const left = new Set(["cards", "chart"]);
  const seen = (part) => {
    left.delete(part);
    // the second frame begins when the first is painted
    if (!left.size) requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - begin)));
  };
  new MutationObserver((_changes, observer) => {
    observer.disconnect();
    seen("cards");
  }).observe(document.getElementById("cards"), { childList: true });
  chart.once("plotly_afterplot", () => seen("chart"));
  // on a phone controls are folded at first
  slider.closest("details").open = true;
  slider.focus();
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(slider, position);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})
"""


class Connection:
    """What a `Page` talks through: a server in another process."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def get(self, path: str) -> Any:
        return self._answer("GET", path)

    def post(self, path: str, json: Mapping[str, Any]) -> Any:
        return self._answer("POST", path, json)

    def _answer(self, method: str, path: str, body: Any = None) -> Any:
        self._http.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = self._http.getresponse()
        text = response.read()
        # a 204 has no body
        answer = json.loads(text or "null")
        return SimpleNamespace(status_code=response.status, text=text, json=answer, get_json=lambda: answer)


class Reader(Page):
    """One page of a scenario of its own."""

    def __init__(self, port: int, seed: int = 0) -> None:
        super().__init__(Connection(port))  # type: ignore[arg-type]
        self._random, self._name = random.Random(seed), f"reader-{seed}"
        self._scenario = f"{_SCENARIOS[seed % len(_SCENARIOS)]}&prompt={1000 + seed}"

    def spend(self, about: str, query: str) -> tuple[float, dict[str, Any]]:
        """Milliseconds until the answer is there, and the answer."""
        begin_s = time.perf_counter()
        answer = self.ask(about, query, **{"page-load": self._name})
        spent_ms = 1e3 * (time.perf_counter() - begin_s)
        # the page shows an error of the query as an answer
        if about == HEADLINE and (error := answer["answer"]["data"]["views"]["error"]):
            raise RuntimeError(f"{query}: {error}")
        return spent_ms, answer

    def positions(self) -> Iterator[str]:
        """Yield queries of a slider that goes up and down a decade, in steps of the page's slider."""
        name, middle, unit = self._random.choice(_SLIDERS)
        at = self._random.randrange(-25, 25)
        while True:
            for step in (*range(at, 25), *range(25, -25, -1), *range(-25, at)):
                yield f"{self._scenario}&{name}={middle * 10 ** (step / 50):.3f}{unit}"

    def drag(self, until_s: float) -> list[tuple[str, float]]:
        """Request what a moved slider shows until `until_s`; return each request, and its milliseconds."""
        spent = []
        while time.monotonic() < until_s:
            released_s = time.monotonic() + DRAG_S
            for query in self.positions():
                begin_s = time.monotonic()
                spent.append((HEADLINE, self.spend(HEADLINE, query)[0]))
                if begin_s > released_s:
                    break
                time.sleep(max(0.0, SPACING_S - (time.monotonic() - begin_s)))
            spent += [(view, self.spend(f"{view}.figure", query)[0]) for view in VIEWS]
            time.sleep(LOOK_S)
        return spent


def main() -> int:
    parts: Mapping[str, Callable[[int], bool]] = {"server": server, "load": under_load, "page": page}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=parts, help="this one alone")
    chosen = parser.parse_args().part
    with serving() as port:
        met = [measure(port) for name, measure in parts.items() if chosen in (None, name)]
    return int(not all(met))


@contextmanager
def serving() -> Iterator[int]:
    """Start an explorer in a process of its own, and yield its port."""
    command = [sys.executable, "-m", "ladder_sim", "explore", "--no-open", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        # a full pipe would hold the server up
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(line.removeprefix(_ADDRESS).partition("/")[0])
    finally:
        process.terminate()
        process.wait()


def show(name: str, spent_ms: Sequence[float], bound: str = "", percentile: float = 50) -> bool:
    """Print percentiles of times; return whether one of them is within a bound."""
    spread = "  ".join(f"p{at} {np.percentile(spent_ms, at):5.0f} ms" for at in (50, 90, 99))
    met = not bound or float(np.percentile(spent_ms, percentile)) <= BOUNDS_MS[bound]
    missed = "" if met else f"  MISSED: p{percentile:g} above {BOUNDS_MS[bound]:.0f} ms"
    print(f"{name:36}{len(spent_ms):6d} answers  {spread}  max {max(spent_ms):5.0f} ms{missed}", flush=True)
    return met


def server(port: int) -> bool:
    """One reader, every answer new, and then all of them at once."""
    alone, met = Reader(port), True
    for view in (HEADLINE, *VIEWS, *IN_BACKGROUND):
        spent = []
        for number in range(6 if view in IN_BACKGROUND else 21):
            query = f"model=405b&nodes=2&inter.bandwidth={20 + number}GB/s&prompt={1000 + number}"
            alone.spend(HEADLINE, query if view != HEADLINE else "model=8b")
            spent.append(alone.spend(view if view == HEADLINE else f"{view}.figure", query)[0])
        bound = "" if view in IN_BACKGROUND else HEADLINE if view == HEADLINE else "views"
        # the first one loads what the others share
        met &= show(f"one reader, {view}", spent[1:], bound)
    until_s = time.monotonic() + SECONDS
    with ThreadPoolExecutor(READERS) as pool:
        runs = pool.map(lambda seed: Reader(port, seed).drag(until_s), range(READERS))
        requests = [request for run in runs for request in run]
    for view in (HEADLINE, *VIEWS):
        bound = "crowd" if view == HEADLINE else ""
        met &= show(f"{READERS} readers, {view}", [ms for name, ms in requests if name == view], bound, 95)
    return met


def under_load(port: int) -> bool:
    """Move the rate, and report what is new of requests under load, and how soon their curves are there."""
    reader, met = Reader(port), True
    for scenario in _UNDER_LOAD:
        spent = []
        for rate in (*np.arange(4, 11, 0.5), 11, 12.5):
            query = f"{scenario}&rate={rate:g}"
            reader.spend(HEADLINE, query)
            begin_s, shown_s, done = time.perf_counter(), 0.0, False
            while not done:
                spent_ms, answer = reader.spend("load-result.children", query)
                spent.append(spent_ms)
                if not shown_s and answer.get("load-views", {}).get("hidden") is False:
                    shown_s = time.perf_counter() - begin_s
                # the last two are waited for
                done = rate < 11 or answer["load-clock"]["disabled"]
                time.sleep(0.2)
            if rate >= 11:
                print(f"{query}: curves after {shown_s:.1f} s", flush=True)
        met &= show("requests under load", spent, "load")
    return met


def page(port: int) -> bool:
    """From a slider's move to numbers and chart on the screen; every position is new to the server."""
    from playwright.sync_api import sync_playwright

    met = True
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (width, height) in _SCREENS.items():
            shown = browser.new_page(viewport={"width": width, "height": height})
            shown.goto(f"http://127.0.0.1:{port}/?model=405b&nodes=2&prompt={1000 + width}")
            for view in _LAST_VIEWS:
                shown.wait_for_selector(view, state="attached")
            spent = []
            for number in range(22):
                # the page rests
                shown.wait_for_timeout(900)
                spent.append(float(shown.evaluate(_MOVE, str(-5.2 + 0.04 * number))))
            shown.close()
            # the first two warm the page up
            met &= show(f"a move to the screen, {name}", spent[2:], "page")
        browser.close()
    return met


if __name__ == "__main__":
    sys.exit(main())
