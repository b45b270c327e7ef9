"""Twenty readers drag sliders for a minute: how long the explorer's server takes to answer, and that it never fails.

Every reader has a scenario of its own and behaves as the page does: drags a slider back and forth, sends the newest
position when the last is answered but at most every 60 ms, lets go after two seconds, draws the other views, and looks
at them for a second. `--requests 5000` then measures memory. Exits with 1 if a request fails, or if a bound of
`BOUNDS_MS`, `CROWDED_MS` or `MOST_GROWTH` is missed.
"""

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

READERS, SECONDS = 20, 60.0
HEADLINE, VIEWS = "answer.data", ("curve", "timeline", "map", "pareto", "tornado")
# that another process computes: no bound, and fewer answers
IN_BACKGROUND = ("versus", "plans", "validation")
# median of one reader's answers
BOUNDS_MS = {HEADLINE: 100.0, "map": 500.0, "pareto": 500.0}
# headline of nineteen readers in twenty, with all of them dragging
CROWDED_MS = 1500.0
SPACING_S, DRAG_S, LOOK_S = 0.06, 2.0, 1.0
# of memory, after two fifths of the requests: by then the caches are full
MOST_GROWTH, _STEPS = 1.05, 10
# what a reader asks for in turn: positions of a slider, then the views of the last one
_MIX = (*(HEADLINE,) * 5, *(f"{view}.figure" for view in VIEWS))
_ADDRESS = "explorer: http://127.0.0.1:"
# name, middle of the scale and its unit
_SCENARIOS = ("model=405b&nodes=2", "model=70b", "model=70b&stack=vllm", "model=8b&tp=4", "model=qwen3-32b&batch=16")
_SLIDERS = (("intra.bandwidth", 200, "GB/s"), ("intra.allreduce_floor", 10, "us"), ("gpu.hbm_bandwidth", 3, "TB/s"))

# what was requested, and milliseconds until the answer
Spent = tuple[str, float]


class Server(NamedTuple):
    """An explorer that runs."""

    port: int
    pid: int
    """Of its process."""


class Reader:
    """One page: sends requests by the server's list of callbacks."""

    def __init__(self, port: int, seed: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._random = random.Random(seed)
        self._page = f"reader-{seed}"
        self._connection.request("GET", "/_dash-dependencies")
        self._callbacks = json.load(self._connection.getresponse())
        self._scenario = f"{_SCENARIOS[seed % len(_SCENARIOS)]}&prompt={1000 + seed}"

    def positions(self) -> Iterator[str]:
        """Queries of a slider that goes up and down a decade, in steps of the page's slider."""
        name, middle, unit = self._random.choice(_SLIDERS)
        at = self._random.randrange(-25, 25)
        while True:
            for step in (*range(at, 25), *range(25, -25, -1), *range(-25, at)):
                yield f"{self._scenario}&{name}={middle * 10 ** (step / 50):.3f}{unit}"

    def ask(self, about: str, query: str) -> float:
        """Milliseconds until the answer is there."""
        callback = next(
            entry for entry in self._callbacks if about in entry["output"] and not entry["clientside_function"]
        )
        parts = [name.partition("@")[0].split(".") for name in callback["output"].strip(".").split("...")]
        outputs = [{"id": owner, "property": name} for owner, name in parts]
        values = {"query": query, "settled": query, "theme": "light", "page-load": self._page}
        body = {
            "output": callback["output"],
            "outputs": outputs if callback["output"].startswith("..") else outputs[0],
            "inputs": [{**item, "value": values[item["id"]]} for item in callback["inputs"]],
            "state": [{**item, "value": values[item["id"]]} for item in callback["state"]],
            "changedPropIds": ["query.data"],
        }
        begin = time.perf_counter()
        self._connection.request(
            "POST", "/_dash-update-component", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        answer = response.read()
        spent_ms = 1e3 * (time.perf_counter() - begin)
        # the page shows an error of the query as an answer
        if response.status != 200 or (about == HEADLINE and b'"error":""' not in answer):
            raise RuntimeError(f"{about}: {response.status} {answer[:200]!r}")
        return spent_ms

    def drag(self, until: float) -> list[Spent]:
        spent: list[Spent] = []
        while time.monotonic() < until:
            released = time.monotonic() + DRAG_S
            query = ""
            for query in self.positions():
                begin = time.monotonic()
                if begin > released:
                    break
                spent.append((HEADLINE, self.ask(HEADLINE, query)))
                time.sleep(max(0.0, SPACING_S - (time.monotonic() - begin)))
            spent.append((HEADLINE, self.ask(HEADLINE, query)))
            spent += [(view, self.ask(f"{view}.figure", query)) for view in VIEWS]
            time.sleep(LOOK_S)
        return spent


def percentile(spent: list[float], share: float) -> float:
    return sorted(spent)[int(share * (len(spent) - 1))]


def summary(spent: list[float]) -> str:
    percentiles = "  ".join(f"p{100 * share:.0f} {percentile(spent, share):5.0f} ms" for share in (0.5, 0.9, 0.99))
    return f"{len(spent):6d} answers  {percentiles}  max {max(spent):5.0f} ms"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--readers", type=int, default=READERS)
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--requests", type=int, default=0, help="over which memory is measured, e.g. 5000")
    given = options.parse_args()
    with serving() as server:
        late = measure_alone(server.port) + measure_crowd(server.port, given.readers, given.seconds)
        late += measure_memory(server, given.requests) if given.requests else []
    print("".join(f"MISSED: {miss}\n" for miss in late), end="")
    return int(bool(late))


@contextmanager
def serving() -> Iterator[Server]:
    """An explorer in a process of its own."""
    command = [sys.executable, "-m", "ladder_sim", "explore", "--no-open", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        # a full pipe would hold the server up
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield Server(port=int(line.removeprefix(_ADDRESS).partition("/")[0]), pid=server.pid)
    finally:
        server.terminate()
        server.wait()


def measure_alone(port: int) -> list[str]:
    """One reader, every answer new; which bounds are missed."""
    alone = Reader(port, seed=0)
    late = []
    print("one reader:")
    for view in (HEADLINE, *VIEWS, *IN_BACKGROUND):
        about = view if view == HEADLINE else f"{view}.figure"
        spent = []
        for number in range(6 if view in IN_BACKGROUND else 21):
            query = f"model=405b&nodes=2&inter.bandwidth={20 + number}GB/s&prompt={1000 + number}"
            alone.ask(HEADLINE, query if view != HEADLINE else "model=8b")
            spent.append(alone.ask(about, query))
        # the first one loads what the others share
        spent = spent[1:]
        print(f"  {view:12s}{summary(spent)}")
        if view not in IN_BACKGROUND and percentile(spent, 0.5) > BOUNDS_MS.get(view, BOUNDS_MS["map"]):
            late.append(f"{view} of one reader, {percentile(spent, 0.5):.0f} ms")
    return late


def measure_memory(server: Server, requests: int) -> list[str]:
    """So many requests of one reader, every answer new; whether memory grows once the caches are full."""
    alone = Reader(server.port, seed=1)
    positions = alone.positions()
    rows = []
    print(f"memory of the server and of its processes over {requests} requests:")
    for number in range(1, requests + 1):
        about = _MIX[number % len(_MIX)]
        if about == HEADLINE:
            query = f"{next(positions)}&gen={2 + number}"
        alone.ask(about, query)
        if number % (requests // _STEPS) == 0:
            rows.append(resident_megabytes(server.pid))
            print(f"  {number:6d} requests  {rows[-1]:6.0f} MB")
    full = rows[_STEPS * 2 // 5 - 1]
    return [f"memory grew from {full:.0f} to {rows[-1]:.0f} MB"] if rows[-1] > MOST_GROWTH * full else []


def resident_megabytes(pid: int) -> float:
    """Of a process and those that it started."""
    kilobytes = int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text("ascii"))[0])
    children = " ".join(file.read_text("ascii") for file in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return kilobytes / 1000.0 + sum(map(resident_megabytes, map(int, children)))


def measure_crowd(port: int, readers: int, seconds: float) -> list[str]:
    """All of them at once; which bounds are missed."""
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(readers) as pool:
        runs = pool.map(lambda seed: Reader(port, seed).drag(until), range(readers))
        spent = [request for run in runs for request in run]
    print(f"{readers} readers for {seconds:.0f} s, {len(spent)} requests, no errors:")
    for view in (HEADLINE, *VIEWS):
        print(f"  {view:12s}{summary([ms for name, ms in spent if name == view])}")
    crowded = percentile([ms for name, ms in spent if name == HEADLINE], 0.95)
    return [f"headline of {readers} readers, {crowded:.0f} ms"] if crowded > CROWDED_MS else []


if __name__ == "__main__":
    sys.exit(main())
