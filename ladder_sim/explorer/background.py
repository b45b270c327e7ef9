"""The views that a process in the background computes: a sentence, a figure and tables each.

A new one is an entry of `VIEWS`: the page's panel, the callback, the files and the exported page follow from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ladder_sim.explorer import plans, validation, versus
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.report import Report
from ladder_sim.explorer.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One of them."""

    title: str
    details: str
    """Heading of the tables that are folded; empty: there are none."""
    question: Callable[[State], State]
    """What of a page's state it depends on."""
    answer: Callable[[State, Allowlist], Report]
    """Of a question."""
    command: Callable[[State, Allowlist], str]
    """That gives the same in a terminal."""


# by the name of their figure and files, in the order of the page
VIEWS: Mapping[str, View] = {
    "versus": View(
        title="Wirings and techniques",
        details="What they need, engines and quality",
        question=versus.question,
        answer=versus.answer,
        command=versus.command,
    ),
    "plans": View(
        title="Plans on these GPUs",
        details="The best of each variant, the Pareto front, and why not the others",
        question=plans.question,
        answer=plans.answer,
        command=plans.command,
    ),
    "validation": View(
        title="How well setups like this are predicted",
        details="",
        question=validation.question,
        answer=validation.answer,
        command=validation.command,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """Answers questions, each the name of a view and a query of its `View.question`."""

    allowlist: Allowlist
    """What queries may name."""

    def __call__(self, question: tuple[str, str], tell: Callable[[Report], object]) -> None:
        """Answer one.

        Raises
        ------
        LadderSimError
            It has no answer.
        """
        name, query = question
        tell(VIEWS[name].answer(State.parse(query, self.allowlist), self.allowlist))
