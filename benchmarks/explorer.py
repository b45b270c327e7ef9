"""How fast the explorer is: the first answer in a headless Chromium, and controls of four readers at once.

    python -m benchmarks.explorer [first | readers]

Each reader has a question of its own, changes one control, and half a second after its answer the next. Prints medians
and 95th percentiles, and exits with 1 if a bound is missed; on a machine that does other work it may be. The first
answer needs playwright, which the test extra installs, and Debian's chromium.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

READERS, CHANGES, PAUSE_S = 4, 40, 0.5
# from the line with the address to the answer on the screen, and from a change to its answer
FIRST_MS, CONTROL_MS = 1000.0, 150.0
_QUESTIONS = (
    "model=405b&nodes=2",
    "model=70b&stack=vllm&concurrency={load}",
    "model=8b&tp=4&batch={load}",
    "model=qwen3-30b-a3b&tp=4&stack=sglang&concurrency={load}",
)


@contextmanager
def explorer() -> Iterator[tuple[int, float]]:
    """Start the explorer; yield its port and when it said so, seconds of `time.perf_counter`."""
    command = [sys.executable, "-m", "ladder_sim", "explore", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = re.search(r":(\d+)/", server.stderr.readline())
            assert address is not None
            yield int(address[1]), time.perf_counter()
        finally:
            server.terminate()


def first_answers(count: int = 5) -> list[float]:
    """Return milliseconds from the server's start to its first answer on the screen, of new servers."""
    # imported here: readers need no browser
    from tests.support.browser import chromium

    took = []
    with chromium() as browser:
        for _ in range(count):
            page = browser.new_page()
            with explorer() as (port, started):
                page.goto(f"http://127.0.0.1:{port}/", wait_until="commit")
                page.wait_for_selector("[data-option=ladder] .ci")
                took.append(1e3 * (time.perf_counter() - started))
            page.close()
    return took


def controls() -> list[float]:
    """Return milliseconds from a control's change to its answer, of all readers."""
    took: list[float] = []
    with explorer() as (port, _):
        readers = [threading.Thread(target=_read, args=(port, number, took)) for number in range(READERS)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    return took


def _read(port: int, number: int, took: list[float]) -> None:
    chance = random.Random(number)
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for change in range(CHANGES):
        query = _QUESTIONS[number].format(load=2 ** chance.randint(0, 5))
        # no answer is there already
        asked = f"/answer?{query}&prompt={chance.randint(64, 8192)}"
        began = time.perf_counter()
        link.request("GET", asked)
        reply = json.loads(link.getresponse().read())
        if change:
            took.append(1e3 * (time.perf_counter() - began))
        assert reply["parts"]["error"] == "", reply["parts"]["error"]
        time.sleep(chance.uniform(0.5, 1.5) * PAUSE_S)


_MEASURED: Mapping[str, tuple[Callable[[], list[float]], float, str]] = {
    "first": (first_answers, FIRST_MS, "first answer on the screen"),
    "readers": (controls, CONTROL_MS, f"a control's answer, {READERS} readers"),
}


def main(names: Sequence[str]) -> int:
    missed = False
    for name in names or _MEASURED:
        measure, bound_ms, title = _MEASURED[name]
        took = measure()
        high = float(np.percentile(took, 95))
        missed |= high > bound_ms
        print(f"{title}: median {np.median(took):.0f} ms, p95 {high:.0f} ms of {len(took)}; bound {bound_ms:.0f} ms")
    return int(missed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*_MEASURED, []])
    sys.exit(main(parser.parse_args().names))
