"""How sure the answer is: measured runs like it, and the sources of its numbers."""

from collections.abc import Sequence

from ladder_sim.confidence.runs import most_alike
from ladder_sim.display.labels import errors_label, interval_text, load_label, unlike_text
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.markup import join, tag
from ladder_sim.explorer.panels import Panel, chart, figures_of, file_link, grid, headed, tail
from ladder_sim.report.columns import percent
from ladder_sim.report.console import WholeTable
from ladder_sim.report.errors import nearest_document, nearest_figure
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.compare import error_stats
from ladder_sim.validation.nearest import Likeness, nearest, table_of

# measured runs that are marked as the nearest, and those of them in the table
SHOWN, _ROWS = 8, 4
_SERVED = (
    "Time per token of standard: no serving of another wiring was measured. The rows are a sample of those that 90 % "
    "intervals are made from; figures of the engine were fitted to those marked with * (hollow), among others."
)
_STATIC = "Speedup of ladder over standard in static batches; the fit has used runs marked with * (hollow)."
_SOURCES = {
    "measured": "interpolated between measurements",
    "fitted": "beyond measurements, or a formula fitted to them",
    "transferred": "measured on other hardware and carried over",
    "roofline": "from the datasheet",
    "stack": "waits and launches of the engine",
}


def evidence(queries: Queries, query: str) -> Panel:
    """Return the measured runs nearest to the scenario, and the sources of the numbers."""
    answer = queries.answer(query)
    scenario = answer.scenario
    runs = nearest(scenario)
    near = runs[:SHOWN]
    drawn = nearest_figure(runs, SHOWN)
    listed = near[:_ROWS]
    rows = [_run_cells(each) for each in listed]
    groups = [f"differs in {', '.join(each.apart)}" if each.apart else "the same but for sizes" for each in listed]
    order = sorted(range(len(listed)), key=lambda at: groups.index(groups[at]))
    shown = WholeTable(
        ("run", "TPOT [ms]" if listed[0].run.figure == "tpot" else "speedup", "predicted (90 %)", "error"),
        [rows[at] for at in order],
        1,
        1,
        frozenset(),
        "Nearest measured runs",
    )
    standard = answer.predictions["standard"]
    shares: dict[str, float] = {}
    for (source, _), seconds in standard.breakdown.sources_s.items():
        shares[source] = shares.get(source, 0.0) + seconds / standard.request_s
    shares["stack"] = max(0.0, 1.0 - sum(shares.values()))
    sources = ", ".join(
        f"{percent(shares[name], 0)} {name} ({meaning})"
        for name, meaning in _SOURCES.items()
        if shares.get(name, 0.0) > 0.0005
    )
    plot = chart("nearest", "Predicted over measured", kind="square")
    what = _STATIC if scenario.workload.concurrency is None else _SERVED
    return Panel(
        html=join(
            [
                headed(_verdict(scenario, runs), file_link("evidence.csv", "CSV")),
                tag(
                    "div",
                    plot,
                    tag("div", grid(shown, groups=[groups[at] for at in order])),
                    class_="two ev",
                ),
                tail(f"{what} Standard's time here is {sources}."),
            ]
        ),
        figures=figures_of(nearest=drawn),
        document=nearest_document(runs),
        command=f"ladder-sim validate {table_of(scenario)}",
    )


def _verdict(scenario: Scenario, runs: Sequence[Likeness]) -> str:
    """Return how far predictions of unseen runs like the scenario are off, or that there are no such runs."""
    alike = [each for each in runs if each.same_kind]
    if not alike:
        others = "The runs below are of other engines or other kinds of models"
        return f"{unlike_text(scenario)} {others}, and their errors say nothing about this scenario."
    near = alike[:SHOWN]
    shared = set.intersection(*(set(each.apart) for each in near))
    apart = [part for part in near[0].apart if part in shared]
    lacking = f"No measured run has the same {', '.join(apart)}." if apart else ""
    if near[0].run.figure == "speedup":
        errors = error_stats(each.run.quantity for each in alike if not each.run.seen)
        assert errors is not None
        far = (
            f"Ladder's speedup is off by {percent(errors.mean_error)} on average and {percent(errors.max_error)} at "
            f"most in the {errors.rows} runs under {scenario.stack.unversioned} that no fit had seen."
        )
    else:
        far = f"In the measured runs most like this: {errors_label(most_alike(scenario, None))}."
    return f"{far} {lacking}".strip()


def _run_cells(each: Likeness) -> tuple[str, ...]:
    scenario, quantity, workload = each.run.scenario, each.run.quantity, each.run.scenario.workload
    requests = f"{load_label(workload)}, {workload.prompt} + {workload.gen}"
    p2p = "" if scenario.p2p else " (P2P off)"
    place = f"{scenario.plan} on {scenario.cluster.name}{p2p}, {scenario.stack.name}, {workload.dtype}"
    scale, decimals = (1e-3, 1) if each.run.figure == "tpot" else (1.0, 2)
    return (
        f"{scenario.model.name}, {place}, {requests}{'*' if each.run.seen else ''}",
        f"{quantity.measured / scale:.{decimals}f}",
        interval_text(quantity.predicted, scale=scale, decimals=decimals),
        f"{percent(quantity.error, sign='+')}{'' if quantity.inside else ', outside'}",
    )
