"""The views that a process in the background computes: a sentence, a figure and tables each.

A new one is an entry of `VIEWS`: the page's panel, the callback, the files and the exported page follow from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ladder_sim.analysis.advise import CANDIDATES, advise
from ladder_sim.analysis.versus import versus
from ladder_sim.confidence.runs import most_alike
from ladder_sim.display.document import Document, Notes
from ladder_sim.display.labels import errors_label, interval_text, load_label, scenario_label
from ladder_sim.errors import UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.snippets import IGNORE_MEMORY, written
from ladder_sim.explorer.state import State
from ladder_sim.report.advise import PLANS_SHOWN, AdviceReport, pareto_figure
from ladder_sim.report.console import WholeTable
from ladder_sim.report.errors import nearest_document, nearest_figure
from ladder_sim.report.versus import TIED, VersusReport, bound_text, cautions
from ladder_sim.specs.arguments import DEFAULTS, keywords_of
from ladder_sim.specs.legal_plans import DEGREES
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_seconds
from ladder_sim.validation.compare import Quantity, error_stats
from ladder_sim.validation.nearest import Likeness, nearest, table_of

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; the first cell of each names it."""

    title: str
    columns: tuple[str, ...]
    groups: Mapping[str, Rows]
    """Rows by the name of their group; one group may have none."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Arguments of each row that turn the page's scenario into the row's; empty if rows are no scenarios."""

    @classmethod
    def of(cls, shown: WholeTable, changes: Sequence[Mapping[str, Any]] = (), *, title: str = "") -> Self:
        """Return a report's table, without groups."""
        return cls(title=title or shown.title, columns=tuple(shown.columns), groups={"": shown.rows}, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What a view in the background shows."""

    verdict: str
    """In a few sentences."""
    figure: Mapping[str, Any]
    """As plotly writes it."""
    tables: tuple[Table, ...]
    """Next to the figure."""
    note: str
    """How to read them."""
    details: tuple[Table, ...]
    """Below them, folded."""
    document: Document
    """As of the command."""
    cautions: tuple[str, ...] = ()
    """What the reader should know."""


def page_notes(notes: Notes) -> Notes:
    """Return the notes of a view without settings that are not used: the page says those once."""
    settings = (name for confidence in notes.confidences.values() for name in confidence.scenario.settings)
    return replace(notes, used=frozenset(settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of the page."""

    title: str
    question: Callable[[State], State]
    """What of a page's state it depends on."""
    panel: Callable[[State, Allowlist], Panel]
    """Function that makes the panel of a question; raises LadderSimError if it has no answer."""
    command: Callable[[State, Allowlist], str]
    """Function that returns the command with the same answer in a terminal."""
    details: str = ""
    """Heading of the tables that are folded; empty: there are none."""


def _versus_question(state: State) -> State:
    """Return the part of the state that `versus` depends on: no wiring or technique of the page, no other view."""
    return state.part("profile", "ignore_memory", technique=DEFAULTS["technique"])


def _versus_panel(state: State, allowlist: Allowlist) -> Panel:
    """Return the panel of what each option gains, as `ladder-sim versus` computes it."""
    result = versus(state.scenario(allowlist), **state.how(allowlist))
    report = VersusReport(result)
    document, gains = report.values(), report.gains()
    left_out = [f"left out: {name}: {reason}" for name, reason in document.content["left_out"].items()]
    return Panel(
        verdict=report.verdict,
        figure=report.figure().to_plotly_json(),
        tables=(
            Table(
                title="Gains",
                columns=tuple(gains["limit"].columns),
                groups={group: each.rows for group, each in gains.items()},
            ),
        ),
        note=f"{TIED}; {bound_text(result)}.",
        details=tuple(Table.of(each, title=title) for title, each in report.needs().items()),
        document=document,
        cautions=(*cautions(result), *page_notes(result.notes).warnings, *left_out),
    )


def _versus_command(state: State, allowlist: Allowlist) -> str:
    """Return the command that compares the same options in a terminal.

    Examples
    --------
    >>> _versus_command(State.parse("model=405b&technique=fused-norm&variants=ladder", Allowlist.of()), Allowlist.of())
    'ladder-sim versus --model 405b'
    """
    return written("versus", state, allowlist, "technique", set=state.ignore_memory and IGNORE_MEMORY)


# of one page: a thousand plans take ten seconds
MAX_GPUS = 64


def _plans_question(state: State) -> State:
    """Return the part of the state that the search for plans depends on: no plan of the page, no other views."""
    degrees = {name: DEFAULTS[name] for name in DEGREES}
    return state.part("profile", "variants", "price", "max_ttft", "max_tpot", **degrees)


def _trained(state: State) -> tuple[str, ...]:
    """Return the page's variants that a model can be trained as, to choose from."""
    shown = dict.fromkeys(("standard", *state.variants))
    return tuple(name for name in shown if name != "upper-bound") if state.variants else CANDIDATES


def _plans_panel(state: State, allowlist: Allowlist) -> Panel:
    """Return the panel of every plan with the page's requests, as `ladder-sim advise` computes it."""
    load = state.arguments["concurrency"]
    requests = {"batch": state.arguments["batch"]} if load is None else {"concurrency": load}
    point = state.point(allowlist, *DEGREES, "batch", "concurrency") | requests
    gpus = point["nodes"] * point.get("gpus_per_node", point["cluster"].gpus_per_node)
    if gpus > MAX_GPUS:
        raise UsageError(
            f"{gpus} GPUs: the page searches plans on at most {MAX_GPUS}", hint="ladder-sim advise searches more"
        )
    advice = advise(
        variants=_trained(state),
        max_ttft_s=state.max_ttft_s,
        max_tpot_s=state.max_tpot_s,
        usd_per_gpu_hour=state.price,
        profile=state.how(allowlist)["profile"],
        **keywords_of(point),
    )
    report = AdviceReport(advice)
    places = report.places(PLANS_SHOWN)
    return Panel(
        verdict=report.verdict,
        figure=pareto_figure(advice, report.label, compact=True).to_plotly_json(),
        tables=(Table.of(report.plans(places, "best plans"), [asdict(place.option.plan) for place in places]),),
        note=f"Best plans: {report.label}; {report.search}. A plan is a link to this page with it.",
        details=(Table.of(report.options(), [asdict(option.plan) for option in advice.predictions]),),
        document=report.values(),
        cautions=(*page_notes(advice.notes).warnings, *(f"left out: {text}" for text in report.left_out())),
    )


def _plans_command(state: State, allowlist: Allowlist) -> str:
    """Return the command that gives the same plans in a terminal.

    Examples
    --------
    >>> _plans_command(State.parse("model=405b&nodes=2&pp=2&batch=8&max_tpot=30ms", Allowlist.of()), Allowlist.of())
    'ladder-sim advise --model 405b --nodes 2 --batches 8 --max-tpot 30ms'
    """
    return written(
        "advise",
        state,
        allowlist,
        *(*DEGREES, "batch"),
        batches=state.arguments["batch"] if state.arguments["concurrency"] is None else None,
        variant=",".join(_trained(state)) if state.variants else None,
        max_tpot=state.max_tpot,
        max_ttft=state.max_ttft,
        price=state.price,
    )


# runs that a table shows
SHOWN = 8
_SERVED = (
    "Time per token of standard: no serving of another wiring was measured. The rows are a sample of those that 90 % "
    "intervals are made from; figures of the engine were fitted to those marked with *, among others."
)
_BATCHES = (
    "Speedup of ladder over standard in static batches; runs marked with * the fit behind the predictions has used."
)


def _validation_question(state: State) -> State:
    """Return the part of the state that validation depends on: the scenario."""
    return state.part()


def _validation_panel(state: State, allowlist: Allowlist) -> Panel:
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


def _validation_command(state: State, allowlist: Allowlist) -> str:
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


# by the name of their figure and files, in the order of the page
VIEWS: Mapping[str, View] = {
    "versus": View(
        title="Wirings and techniques",
        details="What they need, engines and quality",
        question=_versus_question,
        panel=_versus_panel,
        command=_versus_command,
    ),
    "plans": View(
        title="Plans on these GPUs",
        details="The best of each variant, and the Pareto front",
        question=_plans_question,
        panel=_plans_panel,
        command=_plans_command,
    ),
    "validation": View(
        title="How well setups like this are predicted",
        question=_validation_question,
        panel=_validation_panel,
        command=_validation_command,
    ),
}


def answer(allowlist: Allowlist, question: tuple[str, str], tell: Callable[[Panel], object]) -> None:
    """Answer a question: the name of a view, and a query of its `View.question`; raises LadderSimError."""
    name, query = question
    tell(VIEWS[name].panel(State.parse(query, allowlist), allowlist))
