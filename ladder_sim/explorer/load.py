"""Requests that arrive at random: the GPUs that they need, by simulating each of them."""

from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.markup import join, tag
from ladder_sim.explorer.page import load_form, notices
from ladder_sim.explorer.panels import Panel, chart, figures_of, file_link, grid, headed, tail
from ladder_sim.explorer.snippets import (
    OF_REQUESTS,
    REQUESTS,
    USUAL_RATE,
    capacity_command,
    served_plan,
)
from ladder_sim.report.capacity import CapacityReport
from ladder_sim.report.figures.serve import bound_figure
from ladder_sim.serving.capacity import capacity
from ladder_sim.serving.service import SERVED_VARIANTS
from ladder_sim.specs.arguments import keywords_of
from ladder_sim.specs.legal_plans import DEGREES


def load(queries: Queries, query: str) -> Panel:
    """Return the form of requests that arrive, and their answer if they have a rate."""
    state = queries.state(query)
    served = state.under_load()
    # says what is wrong before anything is simulated
    served.scenario(queries.allowlist)
    form = load_form()
    if state.rate is None:
        said = "How many GPUs keep an SLO for requests that arrive at random? Each is simulated, which takes seconds."
        start = tag("button", "Simulate", type="button", class_="btn line strong", data_serve=True)
        return Panel(html=join([headed(said), form, start]), command=capacity_command(state, queries.allowlist))
    return Panel(html=join([form, tag("div", data_view="fleet")]), command=capacity_command(state, queries.allowlist))


def fleet(queries: Queries, query: str) -> Panel:
    """Return the GPUs that requests at a rate need, as of `ladder-sim capacity` for the page's plan."""
    asked = queries.state(query)
    state = asked.under_load()
    scenario = state.scenario(queries.allowlist)
    measured = asked.scenario(queries.allowlist).stack
    if asked.measured and measured != scenario.stack:
        raise UsageError(
            f"measured is of {measured.name}, and requests under load run under {scenario.stack.name}",
            hint=f"choose --stack {measured.name}",
        )
    arguments = state.point(queries.allowlist, *DEGREES, *OF_REQUESTS)
    found = capacity(
        variants=state.variants or SERVED_VARIANTS,
        slo=state.slo,
        rate=state.rate or USUAL_RATE,
        prompt=scenario.workload.prompt,
        gen=scenario.workload.gen,
        requests=REQUESTS,
        usd_per_gpu_hour=state.price,
        profile=asked.how(queries.allowlist, elsewhere=True)["profile"],
        curves=True,
        **served_plan(scenario),
        **keywords_of(arguments),
    )
    report = CapacityReport(found)
    charts = []
    figures: dict[str, Any] = {}
    for number, bound in enumerate(found.slo.bounds):
        charts.append(chart(f"bound{number}", f"{bound.metric.upper()} p{bound.percentile:g}", kind="low"))
        figures |= figures_of(**{f"bound{number}": bound_figure(found, number)})
    brief = report.brief
    wary = [each.text for each in brief.remarks if each.word in ("caution", "left out")]
    return Panel(
        html=join(
            [
                headed(brief.sentence, file_link("fleet.csv", "CSV"), file_link("fleet.json", "JSON")),
                tag("div", charts, class_="two"),
                grid(report.table()),
                tail("Bars: the 90 % interval of the rate at which one replica breaks the SLO."),
                tag(
                    "div",
                    notices((each.text for each in brief.remarks if each.text not in wary), "Why, and the evidence"),
                    notices([*wary, *(brief.cautions or ())]),
                    class_="more",
                ),
            ]
        ),
        figures=figures,
        document=report.document(),
    )
