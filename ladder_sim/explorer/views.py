"""What opens below the answer, one view at a time: each a sentence, a picture with its intervals, and a table.

A view is a function of the query. `VIEWS` is the one list of them: tabs, folded parts, downloads and exported pages
follow from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.evidence import evidence
from ladder_sim.explorer.load import fleet, load
from ladder_sim.explorer.panels import Panel
from ladder_sim.explorer.plans import before, best_plan, options, pareto, plans
from ladder_sim.explorer.timeline import breakdown, messages, timeline
from ladder_sim.explorer.whatif import tornado, two_figures, whatif


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of the page."""

    panel: Callable[[Queries, str], Panel]
    """Function that makes the panel of a query; raises LadderSimError if there is no answer."""
    pool: str = ""
    """Processes that compute the view: "views", "load"; empty: the server itself, because it is quick."""


VIEWS: Mapping[str, View] = {
    "timeline": View(panel=timeline),
    "whatif": View(panel=whatif, pool="views"),
    "plans": View(panel=plans, pool="views"),
    "load": View(panel=load),
    "evidence": View(panel=evidence, pool="views"),
    # folded, or parts of others
    "breakdown": View(panel=breakdown),
    "messages": View(panel=messages),
    "map": View(panel=two_figures, pool="views"),
    "tornado": View(panel=tornado, pool="views"),
    "best-plan": View(panel=best_plan, pool="views"),
    "before": View(panel=before, pool="views"),
    "options": View(panel=options, pool="views"),
    "pareto": View(panel=pareto, pool="views"),
    "fleet": View(panel=fleet, pool="load"),
}
