"""What pages say of recorded runs of vLLM servers, whose requests are served again with fitted times of steps.

The runs were made by commit c98f50a, the last one that has the campaigns.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from ladder_sim.serve import MeasuredSteps, Outcome, Request
from ladder_sim.serve.replicas.pools import Pool
from ladder_sim.serve.replicas.simulation import simulate

TIMES = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s")
# of lines of the page
_WIDTH = 130


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
