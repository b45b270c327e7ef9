"""The answers of `ladder_sim.analysis` as tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.advice import Advice, Objective, Option
from ladder_sim.analysis.breakeven import BreakEven
from ladder_sim.analysis.compare import Candidate
from ladder_sim.analysis.sensitivity import MIN_CHANGE, Sensitivity
from ladder_sim.display.labels import field_label, field_text, interval_text, workload_label
from ladder_sim.report.console import table
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.settings import find_setting
from ladder_sim.units import format_bytes, format_rate, format_seconds

# of an answer to `advise`
_PLANS_SHOWN, _DOMINATORS_SHOWN = 8, 4
# of two figures: a smaller difference rounds to 0 %
_SAME = 0.005
_OBJECTIVES: Mapping[Objective, tuple[str, Callable[[Option], str]]] = {
    "tpot": ("TPOT", lambda option: format_seconds(option.tpot_s)),
    "ttft": ("TTFT", lambda option: format_seconds(option.ttft_s)),
    "tokens_per_s": ("tok/s", lambda option: format_rate(option.tokens_per_s)),
    "tokens_per_gpu": ("tok/s per GPU", lambda option: format_rate(option.tokens_per_gpu)),
}


def breakeven_report(result: BreakEven) -> RenderableType:
    """Where the speedup crosses the target, and what it is at the ends of the range."""
    name, (low, high) = field_label(result.field), result.ends
    head = f"{result.variant} over {result.over}, speedup {result.target:.4g}, along {name}"
    from_start, to_end = result.whole_range
    rows = [
        (
            field_text(result.field, low[0], result.unit),
            low[1].text,
            "start of the range searched" if from_start else "smallest value tried that can run",
        )
    ]
    for crossing in result.crossings:
        direction = "rises above" if crossing.direction == "rising" else "falls below"
        rows.append(
            (
                field_text(result.field, crossing.value, result.unit),
                crossing.speedup.text,
                f"{direction} the target, {result.target:.4g}",
            )
        )
    rows.append(
        (
            field_text(result.field, high[0], result.unit),
            high[1].text,
            "end of the range searched" if to_end else "largest value tried that can run",
        )
    )
    parts: list[RenderableType] = [Text(head, "bold"), table((name, "speedup (90 %)", ""), rows, wrapped=())]
    if not result.crossings:
        side = "above" if low[1].value > result.target else "at or below"
        count = int(np.count_nonzero(~np.isnan(result.speedups)))
        tried = f"all {count} values tried" if count > 1 else "the only value tried"
        can_run = " that can run" if count < len(result.values) else ""
        parts.append(Text(f"no crossing: {side} the target at {tried}{can_run}"))
    ranges = " and ".join(
        " to ".join(field_text(result.field, end, result.unit) for end in each) for each in result.sure
    )
    parts.append(Text(f"lower end of the interval at {result.target:.4g} or above: {ranges or 'nowhere'}"))
    return Group(*parts)


def sensitivity_report(sensitivities: Sequence[Sensitivity], step: float) -> RenderableType:
    """Elasticities of every variant's time and speedup, heaviest first; figures that change nothing are counted."""
    variants = list(sensitivities[0].responses)
    visible = [figure for figure in sensitivities if max(map(figure.widest, variants)) >= MIN_CHANGE]
    hidden = len(sensitivities) - len(visible)
    gains = [name for name in variants if name != "standard"]
    columns = ("figure", "value", *(f"{name} time" for name in variants), *(f"{name} speedup" for name in gains))
    rows = [
        (
            _settable_label(figure.figure),
            field_text(figure.figure, figure.value, figure.unit),
            *(f"{figure.responses[name].request_elasticity:+.3f}" for name in variants),
            *(f"{figure.responses[name].speedup_elasticity:+.3f}" for name in gains),
        )
        for figure in visible
    ]
    verb = "changes" if hidden == 1 else "change"
    head = f"elasticity: change of a request's time and of the speedup per change of the figure, each by {step:.0%}"
    return Group(
        Text(head, "bold"),
        table(columns, rows, wrapped=columns[2:]),
        Text(f"{_counted(hidden, 'more figure')} {verb} the request's time by less than {MIN_CHANGE:.2%}"),
    )


def advice_label(advice: Advice) -> str:
    """What was searched, in a line."""
    scenario = advice.best.scenario
    gpus = f"at most {_counted(advice.gpus, 'GPU')} of {scenario.cluster.name}"
    load = workload_label(scenario, batch=len(advice.loads) == 1)
    return f"{scenario.model.name} on {gpus}, {load}, {scenario.stack.name}"


def advice_report(advice: Advice) -> RenderableType:
    """The best of each variant, the best plans, the Pareto front, and why the others lost."""
    variants, plans, front, losers = best_cells(advice), plan_cells(advice), front_cells(advice), loser_cells(advice)
    columns = losers.columns
    return Group(
        Text(f"best by {advice.objective}: {advice_verdict(advice)}", "bold"),
        Text(advice_label(advice)),
        Text(advice_search(advice)),
        Text(),
        _shown(advice, variants, names=2),
        Text(),
        _shown(advice, plans, names=1),
        Text(),
        _shown(advice, front, names=2),
        Text(),
        table(columns, losers.rows, left=2, wrapped=columns[:2])
        if losers.rows
        else Text("all options are on the front"),
    )


class Cells(NamedTuple):
    """A table of an answer to `advise`, as text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    options: Sequence[Option] = ()
    """What each row is about; empty: about several."""


def _shown(advice: Advice, cells: Cells, *, names: int) -> RenderableType:
    """With so many columns of names, and loads where several were searched."""
    keys = names + len(_load_column(advice))
    return table(cells.columns, cells.rows, left=names, keys=keys, wrapped=(), title=cells.title)


def advice_verdict(advice: Advice) -> str:
    """What is best, and what is with the weights of the model."""
    best, own = advice.best, advice.best_own
    label = _label(advice, best)
    return label if own is best or not own else f"{label}; with the weights of the model: {_label(advice, own)}"


def objective_title(advice: Advice) -> str:
    """What is best, in words."""
    return _OBJECTIVES[advice.objective][0]


def advice_search(advice: Advice) -> str:
    """How many options there were, and became candidates."""
    loads = [f"{len(advice.loads)} {'batches' if _static(advice) else 'loads'}"] if len(advice.loads) > 1 else []
    counts = [_counted(advice.plans, "plan"), *loads, _counted(len(advice.variants), "variant")]
    return f"searched {' x '.join(counts)}; {_counted(len(advice.options), 'option')} left"


def _static(advice: Advice) -> bool:
    return advice.best.scenario.workload.concurrency is None


def _label(advice: Advice, option: Option) -> str:
    return f"{option.variant}, {advice.place(option.scenario)}"


def _settable_label(figure: str) -> str:
    """A figure's name as ``--set`` takes it, where it does."""
    name = next((name for name in (figure, f"cluster.{figure}") if find_setting(name)), "")
    return field_label(name) if name else f"{field_label(figure)} (not settable)"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _load_column(advice: Advice) -> tuple[str, ...]:
    """Where several numbers of requests were searched."""
    return ("batch" if _static(advice) else "in flight",) if len(advice.loads) > 1 else ()


def best_cells(advice: Advice) -> Cells:
    """The best option of each variant."""
    return _options("best of each variant", advice, list(advice.best_by_variant.values()))


def front_cells(advice: Advice) -> Cells:
    """The best trade-offs."""
    return _options("Pareto front of TPOT and tok/s per GPU", advice, advice.front)


def _options(title: str, advice: Advice, options: Sequence[Option]) -> Cells:
    priced = options[0].usd_per_Mtoken is not None
    load = _load_column(advice)
    columns = ("variant", "plan", *load, "GPUs", "TTFT", "TPOT", "tok/s (90%)", "tok/s per GPU", "memory")
    rows = [
        (
            option.variant,
            str(option.plan),
            *([str(option.requests)] if load else []),
            str(option.plan.gpus),
            format_seconds(option.ttft_s),
            format_seconds(option.tpot_s),
            interval_text(advice.predictions[option].tokens_per_s, format_rate),
            format_rate(option.tokens_per_gpu),
            format_bytes(option.memory_bytes),
            *([_price(option.usd_per_Mtoken)] if priced else []),
        )
        for option in options
    ]
    return Cells(title, (*columns, *(["$/Mtoken"] if priced else [])), rows, options)


def plan_cells(advice: Advice) -> Cells:
    """The best plans, each with its best load, and what every variant does there."""
    name, figure = _OBJECTIVES[advice.objective]
    # the options are in order
    best: dict[Plan, Option] = {}
    for option in advice.options:
        best.setdefault(option.plan, option)
    shown = list(best.values())[:_PLANS_SHOWN]
    figures = {(option.scenario, option.variant): figure(option) for option in advice.options}
    load = _load_column(advice)
    rows = [
        (
            str(option.plan),
            *([str(option.requests)] if load else []),
            str(option.plan.gpus),
            *(figures.get((option.scenario, variant), "-") for variant in advice.variants),
        )
        for option in shown
    ]
    title = f"{name} on the best plans" + (f", {len(shown)} of {len(best)}" if len(best) > len(shown) else "")
    return Cells(title, ("plan", *load, "GPUs", *advice.variants), rows, shown)


def loser_cells(advice: Advice) -> Cells:
    """What is not on the front, by reason, and what came closest."""
    rows = [*_not_run(advice), *_over_bounds(advice), *_dominated(advice)]
    return Cells("why not the others", ("not on the front", "closest", "options"), rows)


def _not_run(advice: Advice) -> Iterator[tuple[str, str, str]]:
    no_room = [each for each in advice.unfit if not each.problem]
    others = [each for each in advice.unfit if each.problem]
    if no_room:
        lacking = f"{advice.place(no_room[0].scenario)}: lacks {format_bytes(no_room[0].missing_bytes)} per GPU"
        yield "does not fit the memory", lacking, str(len(no_room) * len(advice.variants))
    if others:
        yield (
            "cannot run",
            f"{advice.place(others[0].scenario)}: {others[0].problem}",
            str(len(others) * len(advice.variants)),
        )


def _over_bounds(advice: Advice) -> Iterator[tuple[str, str, str]]:
    over: dict[str, list[Option]] = {"max_tpot": [], "max_ttft": []}
    for option in advice.beyond:
        over[advice.outcome(option)].append(option)
    if slow := over["max_tpot"]:
        fastest = min(slow, key=lambda option: option.tpot_s)
        bound = format_seconds(advice.max_tpot_s)
        yield f"TPOT over {bound}", f"{_label(advice, fastest)}: {format_seconds(fastest.tpot_s)}", str(len(slow))
    if late := over["max_ttft"]:
        first = min(late, key=lambda option: option.ttft_s)
        bound = format_seconds(advice.max_ttft_s)
        yield f"TTFT over {bound}", f"{_label(advice, first)}: {format_seconds(first.ttft_s)}", str(len(late))


def _dominated(advice: Advice) -> Iterator[tuple[str, str, str]]:
    by_better: dict[Option, list[Option]] = {}
    for option in advice.options:
        if better := advice.dominating(option):
            by_better.setdefault(better, []).append(option)
    groups = sorted(by_better.items(), key=lambda group: -len(group[1]))
    for better, worse in groups[:_DOMINATORS_SHOWN]:
        closest = max(worse, key=lambda option: option.tokens_per_gpu)
        rate, tpot = closest.tokens_per_gpu / better.tokens_per_gpu, closest.tpot_s / better.tpot_s
        detail = f"{_label(advice, closest)}: {_apart(rate)} tok/s per GPU, {_apart(tpot)} TPOT"
        yield f"no better than {_label(advice, better)}", detail, str(len(worse))
    if rest := groups[_DOMINATORS_SHOWN:]:
        count = sum(len(worse) for _, worse in rest)
        yield "no better than others of the front", "each in --json and --csv", str(count)


def _apart(ratio: float) -> str:
    """A difference in percent."""
    return "the same" if abs(ratio - 1) < _SAME else f"{ratio - 1:+.0%}"


def _price(usd_per_Mtoken: float | None) -> str:
    return "" if usd_per_Mtoken is None else f"{usd_per_Mtoken:.3g}"


def comparison_report(candidates: Sequence[Candidate]) -> RenderableType:
    """Every variant on every candidate, and how much faster it is than on the first."""
    first = candidates[0]
    columns = ("variant", "on", "TTFT", "TPOT", "tok/s (90%)", f"over {first.name}", "speedup", "$/Mtoken")
    rows = []
    for variant, base in first.predictions.items():
        for candidate in candidates:
            prediction = candidate.predictions[variant]
            rows.append(
                (
                    variant if candidate is first else "",
                    candidate.name,
                    format_seconds(prediction.ttft_s),
                    "-" if prediction.tpot_s is None else format_seconds(prediction.tpot_s),
                    interval_text(prediction.tokens_per_s, format_rate),
                    f"{base.request_s / prediction.request_s:.2f}x",
                    prediction.speedup.text,
                    _price(candidate.token_price(variant)),
                )
            )
    kept = len(columns) if any(candidate.usd_per_gpu_hour is not None for candidate in candidates) else -1
    where = "; ".join(
        f"{candidate.name}: {candidate.scenario.plan}, profile {candidate.predictions.confidence.profile}"
        for candidate in candidates
    )
    return Group(
        Text(f"{first.scenario.model.name}, {workload_label(first.scenario)}"),
        Text(where, "bold"),
        table(columns[:kept], [row[:kept] for row in rows], left=2, keys=2, wrapped=()),
    )
