"""The view of all plans on the page's GPUs: which serves its requests best."""

from dataclasses import asdict

from ladder_sim.analysis.advise import CANDIDATES, advise
from ladder_sim.errors import UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.panel import Panel, Table, page_notes
from ladder_sim.explorer.snippets import written
from ladder_sim.explorer.state import State
from ladder_sim.report.advise import PLANS_SHOWN, AdviceReport
from ladder_sim.report.figures.analysis import pareto_figure
from ladder_sim.specs.arguments import DEFAULTS, keywords_of
from ladder_sim.specs.legal_plans import DEGREES

# of one page: a thousand plans take ten seconds
MAX_GPUS = 64


def question(state: State) -> State:
    """Return the part of the state that the search for plans depends on: no plan of the page, no other views."""
    return State(
        arguments={**state.arguments, **{name: DEFAULTS[name] for name in DEGREES}},
        shape=state.shape,
        profile=state.profile,
        settings=state.settings,
        variants=state.variants,
        price=state.price,
        max_ttft=state.max_ttft,
        max_tpot=state.max_tpot,
    )


def trained(state: State) -> tuple[str, ...]:
    """Return the page's variants that a model can be trained as, to choose from."""
    shown = dict.fromkeys(("standard", *state.variants))
    return tuple(name for name in shown if name != "upper-bound") if state.variants else CANDIDATES


def panel(state: State, allowlist: Allowlist) -> Panel:
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
        variants=trained(state),
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
        details=(
            Table.of(report.best(), [asdict(option.plan) for option in advice.best_by_variant.values()]),
            Table.of(report.front(), [asdict(option.plan) for option in advice.front]),
            Table.of(report.losers()),
        ),
        document=report.values(),
        cautions=tuple(page_notes(advice.notes).warnings),
    )


def command(state: State, allowlist: Allowlist) -> str:
    """Return the command that gives the same plans in a terminal.

    Examples
    --------
    >>> command(State.parse("model=405b&nodes=2&pp=2&batch=8&max_tpot=30ms", Allowlist.of()), Allowlist.of())
    'ladder-sim advise --model 405b --nodes 2 --batches 8 --max-tpot 30ms'
    """
    return written(
        "advise",
        state,
        allowlist,
        *(*DEGREES, "batch"),
        batches=state.arguments["batch"] if state.arguments["concurrency"] is None else None,
        variant=",".join(trained(state)) if state.variants else None,
        max_tpot=state.max_tpot,
        max_ttft=state.max_ttft,
        price=state.price,
    )
