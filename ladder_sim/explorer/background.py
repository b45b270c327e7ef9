"""The views that a process in the background computes: a sentence, a figure and tables each.

A new one is an entry of `VIEWS`: the page's panel, the callback, the files and the exported page follow from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from ladder_sim.explorer import plans, validation, versus
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.panel import Panel
from ladder_sim.explorer.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One of them."""

    title: str
    details: str
    """Heading of the tables that are folded; empty: there are none."""
    question: Callable[[State], State]
    """What of a page's state it depends on."""
    panel: Callable[[State, Allowlist], Panel]
    """Function that makes the panel of a question; raises LadderSimError if it has no answer."""
    command: Callable[[State, Allowlist], str]
    """Function that returns the command with the same answer in a terminal."""


def _view(module: ModuleType, title: str, details: str = "") -> View:
    return View(title=title, details=details, question=module.question, panel=module.panel, command=module.command)


# by the name of their figure and files, in the order of the page
VIEWS: Mapping[str, View] = {
    "versus": _view(versus, "Wirings and techniques", "What they need, engines and quality"),
    "plans": _view(plans, "Plans on these GPUs", "The best of each variant, the Pareto front, and why not the others"),
    "validation": _view(validation, "How well setups like this are predicted"),
}


def answer(allowlist: Allowlist, question: tuple[str, str], tell: Callable[[Panel], object]) -> None:
    """Answer a question: the name of a view, and a query of its `View.question`; raises LadderSimError."""
    name, query = question
    tell(VIEWS[name].panel(State.parse(query, allowlist), allowlist))
