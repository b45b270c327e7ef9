"""The view of measured runs that are the most like the page's scenario, with their predictions."""

from collections.abc import Sequence

from ladder_sim.confidence.runs import most_alike
from ladder_sim.display.labels import errors_label, interval_text, load_label, scenario_label
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.panel import Panel, Table
from ladder_sim.explorer.state import State
from ladder_sim.report.errors import nearest_document
from ladder_sim.report.figures.validation import nearest_figure
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_seconds
from ladder_sim.validation.compare import Quantity, error_stats
from ladder_sim.validation.nearest import Likeness, nearest, table_of

# runs that a table shows
SHOWN = 8
_SERVED = (
    "Time per token of standard: no serving of another wiring was measured. The rows are a sample of those that 90 % "
    "intervals are made from; figures of the engine were fitted to those marked with *, among others."
)
_BATCHES = (
    "Speedup of ladder over standard in static batches; runs marked with * the fit behind the predictions has used."
)


def question(state: State) -> State:
    """Return the part of the state that validation depends on: the scenario."""
    return State(arguments=state.arguments, shape=state.shape, settings=state.settings)


def panel(state: State, allowlist: Allowlist) -> Panel:
    """Return the panel of the measured runs nearest to the scenario."""
    scenario = state.scenario(allowlist)
    runs = nearest(scenario)
    near = runs[:SHOWN]
    return Panel(
        verdict=_verdict(scenario, runs),
        figure=nearest_figure(runs, SHOWN, f"The nearest to {scenario_label(scenario)}").to_plotly_json(),
        tables=(
            Table(
                title="Nearest measured runs",
                columns=("run", "measured", "predicted (90 %)", "error"),
                groups=_groups(near),
            ),
        ),
        note=_BATCHES if scenario.workload.concurrency is None else _SERVED,
        details=(),
        document=nearest_document(runs),
    )


def command(state: State, allowlist: Allowlist) -> str:
    """Return the command that compares all measured runs of this kind with predictions."""
    return f"ladder-sim validate {table_of(state.scenario(allowlist))}"


def _verdict(scenario: Scenario, runs: Sequence[Likeness]) -> str:
    """Return how far predictions of unseen runs like the scenario are off, or that there are no such runs."""
    alike = [each for each in runs if each.same_kind]
    engine, kind = scenario.stack.unversioned, scenario.model.kind_label
    if not alike:
        what = "static batch" if scenario.workload.concurrency is None else "serving"
        return (
            f"Nothing like this was measured: no {what} of {kind} under {engine}. The runs below are of other engines "
            "or other kinds of models, and their errors say nothing about this scenario."
        )
    near = alike[:SHOWN]
    shared = set.intersection(*(set(each.apart) for each in near))
    apart = [part for part in near[0].apart if part in shared]
    lacking = f"No measured run has the same {', '.join(apart)}." if apart else ""
    if near[0].run.figure == "speedup":
        errors = error_stats(each.run.quantity for each in alike if not each.run.seen)
        assert errors is not None
        far = (
            f"Ladder's speedup is off by {errors.mean_error:.1%} on average and {errors.max_error:.1%} at most in the "
            f"{errors.rows} runs under {engine} that no fit had seen."
        )
    else:
        far = f"{errors_label(most_alike(scenario, None))}."
    return f"{far} {lacking}".strip()


def _groups(near: Sequence[Likeness]) -> dict[str, list[list[str]]]:
    groups: dict[str, list[list[str]]] = {}
    for each in near:
        title = f"differs in {', '.join(each.apart)}" if each.apart else "the same but for sizes"
        groups.setdefault(title, []).append(_cells(each))
    return groups


def _cells(each: Likeness) -> list[str]:
    scenario, quantity, workload = each.run.scenario, each.run.quantity, each.run.scenario.workload
    requests = f"{load_label(workload)}, {workload.prompt} + {workload.gen}"
    show = format_seconds if each.run.figure == "tpot" else "{:.2f}".format
    return [
        f"{scenario.model.name}, {_place(scenario)}, {requests}{'*' if each.run.seen else ''}",
        show(quantity.measured),
        interval_text(quantity.predicted, show),
        _error(quantity),
    ]


def _place(scenario: Scenario) -> str:
    p2p = "" if scenario.p2p else " (P2P off)"
    return f"{scenario.plan} on {scenario.cluster.name}{p2p}, {scenario.stack.name}, {scenario.workload.dtype}"


def _error(quantity: Quantity) -> str:
    return f"{quantity.error:+.1%}{'' if quantity.inside else ', outside'}"
