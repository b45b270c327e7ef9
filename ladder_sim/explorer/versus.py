"""The view of every wiring and technique side by side: dozens of predictions, which a `Worker` makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ladder_sim.analysis.versus import versus
from ladder_sim.display.document import Document
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import State
from ladder_sim.report.documents.versus import versus_document
from ladder_sim.report.figures.versus import versus_figure


@dataclass(frozen=True, slots=True, kw_only=True)
class VersusReport:
    """The options of a scenario, in plain values."""

    document: Document
    """As of `ladder-sim versus`."""
    figure: Mapping[str, Any]
    """As plotly writes it."""
    cautions: tuple[str, ...]
    """What the reader should know."""

    @property
    def verdict(self) -> str:
        """What gains most, in a few sentences."""
        text: str = self.document.content["verdict"]
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class VersusView:
    """Answers queries of the page."""

    allowlist: Allowlist
    """What queries may name."""

    def __call__(self, query: str, tell: Callable[[VersusReport], object]) -> None:
        """Answer a query of `State.side_by_side`.

        Raises
        ------
        LadderSimError
            It has no answer.
        """
        state = State.parse(query, self.allowlist)
        result = versus(state.scenario(self.allowlist), **state.how(self.allowlist))
        figure = versus_figure(result).to_plotly_json()
        cautions = tuple(result.notes.warnings)
        tell(VersusReport(document=versus_document(result), figure=figure, cautions=cautions))
