"""Twenty readers drag a slider for a minute: what the explorer's server takes for an answer, and that it never fails.

Every reader sends one query at a time, as the page does, each with another bandwidth and latency, and draws the other
views once in ten answers, when the slider rests. Exits with 1 if a request fails or one reader alone waits too long.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

READERS, SECONDS = 20, 60.0
ALONE_MS, MAP_MS = 100.0, 500.0
# bounds of one reader's answers: headline and main chart, heat map
VIEWS = ("curve", "timeline", "map", "tornado")
_ADDRESS = "explorer: http://127.0.0.1:"


class Reader:
    """One page: asks by the callbacks that the server has told it."""

    def __init__(self, port: int, seed: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._random = random.Random(seed)
        self._connection.request("GET", "/_dash-dependencies")
        self._callbacks = json.load(self._connection.getresponse())

    def query(self) -> str:
        bandwidth, latency = 10 ** self._random.uniform(0.7, 2.3), 10 ** self._random.uniform(0.3, 2.3)
        return f"model=405b&nodes=2&inter.bandwidth={bandwidth:.3g}GB/s&inter.latency={latency:.3g}us"

    def ask(self, about: str, query: str) -> float:
        """Milliseconds that the server takes."""
        found = next(one for one in self._callbacks if about in one["output"] and not one["clientside_function"])
        parts = [name.partition("@")[0].split(".") for name in found["output"].strip(".").split("...")]
        outputs = [{"id": owner, "property": name} for owner, name in parts]
        values = {"query": query, "settled": query, "theme": "light"}
        body = {
            "output": found["output"],
            "outputs": outputs if found["output"].startswith("..") else outputs[0],
            "inputs": [{**one, "value": values[one["id"]]} for one in found["inputs"]],
            "changedPropIds": ["query.data"],
        }
        begin = time.perf_counter()
        self._connection.request(
            "POST", "/_dash-update-component", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        answer = response.read()
        spent_ms = 1e3 * (time.perf_counter() - begin)
        if response.status != 200 or b'"error":{"children":{' in answer:
            raise RuntimeError(f"{about}: {response.status} {answer[:200]!r}")
        return spent_ms

    def drag(self, until: float) -> list[tuple[str, float]]:
        spent = []
        while time.monotonic() < until:
            query = self.query()
            spent.append(("headline", self.ask("summary.children", query)))
            if len(spent) % 10 == 9:
                spent += [(view, self.ask(f"{view}.figure", query)) for view in VIEWS]
        return spent


def percentiles(spent: list[float]) -> str:
    ordered = sorted(spent)
    marks = (0.5, 0.95, 0.99)
    found = "  ".join(f"p{100 * mark:.0f} {ordered[int(mark * (len(ordered) - 1))]:6.0f} ms" for mark in marks)
    return f"{len(ordered):6d} answers  {found}  most {ordered[-1]:6.0f} ms"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--readers", type=int, default=READERS)
    options.add_argument("--seconds", type=float, default=SECONDS)
    given = options.parse_args()
    command = [sys.executable, "-m", "ladder_sim", "explore", "--no-open", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        port = int(line.removeprefix(_ADDRESS).partition("/")[0])
        # a full pipe would hold the server up
        threading.Thread(target=server.stderr.read, daemon=True).start()
        return measure(port, given.readers, given.seconds)
    finally:
        server.terminate()
        server.wait()


def measure(port: int, readers: int, seconds: float) -> int:
    alone = Reader(port, seed=0)
    for view in ("summary.children", *(f"{view}.figure" for view in VIEWS)):
        alone.ask(view, alone.query())
    headline = [alone.ask("summary.children", alone.query()) for _ in range(40)]
    heat_map = [alone.ask("map.figure", alone.query()) for _ in range(20)]
    print(f"one reader, headline and main chart: {percentiles(headline)}")
    print(f"one reader, heat map of 40 x 40:     {percentiles(heat_map)}")
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(readers) as pool:
        spent = [
            one for found in pool.map(lambda seed: Reader(port, seed).drag(until), range(readers)) for one in found
        ]
    print(f"{readers} readers for {seconds:.0f} s, no request failed:")
    for view in ("headline", *VIEWS):
        print(f"  {view:9s}{percentiles([ms for name, ms in spent if name == view])}")
    late = sorted(headline)[20] > ALONE_MS or sorted(heat_map)[10] > MAP_MS
    if late:
        print(f"too slow: the bounds are {ALONE_MS:.0f} and {MAP_MS:.0f} ms")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
