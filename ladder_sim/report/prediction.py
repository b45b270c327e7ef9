"""The answer of `predict`: what each variant takes, where its time goes, what it is based on, and every op."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple, Self, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.best_standard import STANDARD, in_fp8
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.costs.estimate import Source
from ladder_sim.costs.hardware import host_step_s
from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.display.labels import (
    LEGEND,
    asked_text,
    evidence_text,
    gain_text,
    interval_text,
    kind_label,
    next_to_label,
    wiring_label,
)
from ladder_sim.kernels import Phase
from ladder_sim.prediction import Prediction, Predictions, own_variant
from ladder_sim.report.columns import Column, fields_of, percent, table_of
from ladder_sim.report.console import WholeTable, table
from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.simulate.breakdown import Collective, SimulatedOp
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.units import counted_text, format_bytes, format_seconds
from ladder_sim.wirings.names import NO_COMMUNICATION

# of a request's time: less rounds to 0.0 %
_SHOWN_SHARE = 5e-4
# how far the best is behind no communication, to be told why
_TOLD_BEHIND = 0.005


# in JSON and CSV
VALUES: Sequence[Column[Prediction]] = (
    Column("ttft_s", lambda each: each.ttft_s),
    Column("tpot_s", lambda each: each.tpot_s, null=True),
    Column("request_s", lambda each: each.request_s),
    Column("tokens_per_s", lambda each: each.tokens_per_s, kind=Interval),
    Column("speedup", lambda each: each.speedup, kind=Interval),
    Column("ttft_speedup", lambda each: each.ttft_speedup),
    Column("tpot_speedup", lambda each: each.tpot_speedup, null=True),
    Column("comm_s", lambda each: each.breakdown.comm_s),
    Column("exposed_comm_s", lambda each: each.breakdown.exposed_comm_s),
    Column("memory_bytes_per_gpu", lambda each: each.memory.total_bytes),
    Column("fits", lambda each: each.memory.fits, kind=bool),
)


class _Row(NamedTuple):
    """A row of the table: a variant, or standard on a plan that was not asked about."""

    name: str
    speedup: Interval
    tpot_s: Interval | None
    ttft_s: Interval
    tokens_per_s: Interval
    exposed: float
    """Share of the request."""

    @classmethod
    def of(cls, name: str, confidence: Confidence, variant: str, speedup: Interval) -> Self:
        """Return a row of one of the predictions that a confidence is of."""
        request, widths = confidence.request(variant), confidence.widths[variant]
        workload = confidence.scenario.workload
        request_s, ttft_s, steps = float(request.request_s), float(request.ttft_s), workload.gen - 1
        return cls(
            name,
            speedup,
            Interval.around(float(request.decode_s) / steps, widths.tpot) if steps else None,
            widths.ttft_interval(ttft_s),
            Interval.around(workload.in_flight * workload.gen / request_s, widths.rate),
            request.breakdown.exposed_comm_s / request_s,
        )


# in a table
SHOWN: Sequence[Column[_Row]] = (
    Column("variant", lambda row: row.name, "variant"),
    Column("speedup", lambda row: row.speedup, "speedup", decimals=2),
    Column("tpot_s", lambda row: row.tpot_s, "TPOT"),
    Column("ttft_s", lambda row: row.ttft_s, "TTFT", ends=False),
    Column("tokens_per_s", lambda row: row.tokens_per_s, "tok/s"),
    Column("", lambda row: row.exposed, "exposed", share=True),
)


def prediction_fields(prediction: Prediction) -> dict[str, Any]:
    """Return one variant's fields of JSON and CSV; with requests in flight and jitter, those of them, too."""
    more = (prediction.load, prediction.unevenness)
    return fields_of(VALUES, prediction) | {
        name: value for each in more if each for name, value in asdict(each).items()
    }


class PredictionReport(Report[Predictions]):
    """How predictions of a scenario's variants look."""

    figures: ClassVar = {
        "breakdown": lambda self: breakdown_figure(self.answer.confidence.scenario, self.answer),
        "timeline": lambda self: timeline_figure(self.answer.confidence.scenario, self.answer, "decode"),
    }

    def _brief(self) -> Brief:
        predictions, confidence = self.answer, self.answer.confidence
        return Brief(
            sentence=_verdict(predictions),
            asked=asked_text(confidence.scenario),
            table=table_of(SHOWN, list(_rows(predictions)), width=WIDTH),
            remarks=[Remark("why", reason_text(predictions)), Remark("evidence", evidence_text(confidence))],
            offers=[Remark("instead", text) for text in _instead(predictions)],
        )

    def details(self) -> RenderableType:
        predictions, scenario = self.answer, self.answer.confidence.scenario
        return Group(
            *_unevenness_table(predictions),
            _breakdown(predictions),
            *(Text(f"{word}: {meaning}") for word, meaning in LEGEND.items() if scenario.plan.replica_gpus > 1),
            *map(Text, _ranking(predictions)),
            Text(),
            _sources(predictions),
            explanation(predictions.values()),
        )

    def values(self) -> Document:
        predictions, confidence, best = self.answer, self.answer.confidence, self.answer.best_standard
        given = scenario_fields(confidence.scenario)
        variants = {name: prediction_fields(prediction) for name, prediction in predictions.items()}
        content = {
            "batching": confidence.scenario.workload.batching,
            "scenario": given,
            "variants": variants,
            "best_standard": best.fields({name: each.speedup for name, each in predictions.items()}) if best else None,
            "collectives": {
                name: [asdict(each) for each in prediction.collectives] for name, prediction in predictions.items()
            },
            "provenance": {"profile": confidence.profile, "measured_fraction": confidence.measured_fraction},
        }
        return Document(content=content, rows=[{**given, "variant": name, **each} for name, each in variants.items()])


def _fastest(predictions: Mapping[str, Prediction]) -> Prediction | None:
    """Return the wiring that gains most, of those that can be run; None if standard is the only one."""
    rewired = [each for name, each in predictions.items() if name not in (STANDARD, NO_COMMUNICATION)]
    return max(rewired, key=lambda each: each.request_speedup, default=None)


def _rows(predictions: Predictions) -> Iterator[_Row]:
    """Yield the variants, and under standard the plan on which it is fastest, if that is another one."""
    confidence, best = predictions.confidence, predictions.best_standard
    for name, prediction in predictions.items():
        yield _Row.of(wiring_label(name), confidence, name, prediction.speedup)
        if name == STANDARD and best:
            yield _Row.of(f"  on {best.scenario.plan}", best.confidence, STANDARD, best.faster)


def _verdict(predictions: Predictions) -> str:
    """Return a sentence on what the best wiring gains, with its interval and its price."""
    fastest, confidence, best = _fastest(predictions), predictions.confidence, predictions.best_standard
    if fastest is None:
        first = next(iter(predictions.values()))
        row = _Row.of(first.variant, confidence, first.variant, first.speedup)
        token = f", {interval_text(row.tpot_s, scale=1e-3)} ms a token" if row.tpot_s else ""
        return (
            f"{wiring_label(first.variant, sentence=True)} makes {interval_text(row.tokens_per_s)} tok/s{token} here."
        )
    own = own_variant(confidence.scenario.model) == fastest.variant
    price = "the model is trained so" if own else "it needs retraining"
    besides = ""
    if best:
        gain, ends = best.gain(fastest.speedup).text.split(" ", 1)
        besides = f" and {gain}x as fast as standard on {best.scenario.plan} {ends}"
    gains = gain_text(fastest.speedup, "standard here")
    return f"{wiring_label(fastest.variant, sentence=True)} {gains}{besides}; {price}."


def _instead(predictions: Predictions) -> Iterator[str]:
    if STANDARD not in predictions or (found := in_fp8(predictions.confidence)) is None:
        return
    asked, there = predictions.confidence.scenario, found.scenario
    fewer = asked.nodes - there.nodes
    fits = f"fits {counted_text(there.nodes, 'node')}: " if fewer else "is faster: "
    yield f"--dtype fp8 {fits}standard makes {interval_text(found.tokens_per_s)} tok/s there, without retraining."


def _ranking(predictions: Predictions) -> Iterator[str]:
    """Yield a sentence for each wiring that the best one beats, or may not beat."""
    best = _fastest(predictions)
    for name in predictions:
        if best and name not in (best.variant, STANDARD, NO_COMMUNICATION):
            faster = interval_text(predictions.over(best.variant, name), decimals=2)
            yield f"{best.variant}, times as fast as {name}: {faster}"


def reason_text(predictions: Predictions) -> str:
    """Return a sentence on what limits the first variant, and what is left to limit the best."""
    first, best = next(iter(predictions.values())), _fastest(predictions)
    exposed = first.breakdown.exposed_comm_s / first.request_s
    if not first.breakdown.comm_s or first.variant == NO_COMMUNICATION:
        return f"There is no communication; {limit_text(first)}."
    said = f"{wiring_label(first.variant, sentence=True)} waits for communication {percent(exposed, 0)} of the time"
    if best is None or best is first:
        return f"{said}; {limit_text(first)}."
    if not best.breakdown.comm_s:
        return f"{said}; {best.variant} has none. Then {limit_text(best)}."
    hides = f"{best.variant} hides {percent(best.breakdown.hidden_share, 0)} of its own"
    bound = predictions.get(NO_COMMUNICATION)
    behind = best.request_s / bound.request_s - 1.0 if bound else 0.0
    if not bound or behind < _TOLD_BEHIND:
        return f"{said}; {hides}. Then {limit_text(best)}."
    # what takes longer on the critical path than without communication; what it displaces there takes less
    longer = {
        limit: (seconds - bound.breakdown.limits_s.get(limit, 0.0)) / bound.request_s
        for limit, seconds in best.breakdown.limits_s.items()
    }
    most = kind_label(max(longer, key=lambda limit: longer[limit]))
    return f"{said}; {hides} and stays {percent(behind, 0)} behind no communication, mostly by {most}."


def limit_text(prediction: Prediction) -> str:
    """Return what limits a prediction most, in words."""
    limit = prediction.limited_by
    return f"the limit is {kind_label(limit)} ({percent(prediction.limit_share(limit), 0)} of the time)"


def _unevenness_table(predictions: Mapping[str, Prediction]) -> list[RenderableType]:
    rows = []
    for name, prediction in predictions.items():
        uneven = prediction.unevenness
        if uneven is None:
            return []
        times = (uneven.ttft_p50_s, uneven.ttft_p95_s, uneven.tpot_p50_s, uneven.tpot_p95_s, uneven.waiting_s)
        rows.append((name, *("-" if seconds is None else format_seconds(seconds) for seconds in times)))
    columns = ("uneven ranks", "TTFT p50", "p95", "TPOT p50", "p95", "waiting for others, hidden or not")
    return [table(columns, rows), Text()]


def _breakdown(predictions: Mapping[str, Prediction]) -> WholeTable:
    limits = sorted(
        {
            limit
            for prediction in predictions.values()
            for limit in prediction.breakdown.limits_s
            if prediction.limit_share(limit) >= _SHOWN_SHARE
        },
        key=lambda limit: -max(prediction.breakdown.limits_s.get(limit, 0.0) for prediction in predictions.values()),
    )
    rows = [
        (name, *(f"{prediction.limit_share(limit):.1%}" for limit in limits))
        for name, prediction in predictions.items()
    ]
    names = tuple(map(kind_label, limits))
    return table(("critical path", *names), rows, wrapped=[name for name in names if " " in name])


def _sources(predictions: Mapping[str, Prediction]) -> Group:
    """Return where the first variant's times come from, by source and op kind."""
    prediction = next(iter(predictions.values()))
    shares: dict[str, list[tuple[float, str]]] = {}
    for (source, kind), seconds in prediction.breakdown.sources_s.items():
        shares.setdefault(source, []).append((seconds / prediction.request_s, kind_label(kind)))
    shares["stack"] = [
        (prediction.limit_share("waits"), "waits and launches"),
        (prediction.limit_share("host"), "host"),
        (prediction.limit_share("front end"), "front end"),
    ]
    lines = []
    for source in (*get_args(Source), "stack"):
        kinds = sorted(((share, kind) for share, kind in shares.get(source, []) if share >= _SHOWN_SHARE), reverse=True)
        if kinds:
            parts = ", ".join(f"{kind} {share:.1%}" for share, kind in kinds)
            lines.append(f"  {source:<12}{sum(share for share, _ in kinds):>6.1%}  {parts}")
    confidence = prediction.confidence
    head = (
        f"{confidence.measured_fraction:.0%} of standard's time is measured (profile {confidence.profile}). "
        f"Sources of {prediction.variant}'s time:"
    )
    return Group(*map(Text, [head, *lines]))


# titles of passes, by phase
_STEPS: Mapping[Phase, str] = {
    "prefill": "prefill",
    "decode": "one decode step",
    "mixed": "one step with prompts, which come without a pause",
}


def explanation(predictions: Iterable[Prediction]) -> RenderableType:
    """Return what times of requests in flight are made of, the ops of each kind of step, and a GPU's memory."""
    first, *others = predictions
    return Group(
        *_explanation(first, None), *(part for prediction in others for part in _explanation(prediction, first))
    )


def _explanation(prediction: Prediction, first: Prediction | None) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), Text(_load_text(prediction))] if prediction.load else []
    for phase in ("prefill", "decode"):
        step = getattr(prediction.request, phase)
        if step is not None:
            name = _STEPS[step.schedule.kernels.rank.phase]
            title = f"{prediction.variant}: {name}, {format_seconds(float(step.seconds))}"
            parts += [Text(), _op_table(title, step)]
            if step.collectives:
                parts += [Text(), _collectives_table(step.collectives)]
            if first is not None:
                parts += [Text(_difference_text(first.variant, step.differs_from(getattr(first.request, phase))))]
    memory = prediction.memory
    held = ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in memory.part_bytes.items())
    total = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}"
    parts.append(Text(f"memory per GPU: {total} ({held})"))
    return parts


def _difference_text(first: str, longer_s: Mapping[str, float]) -> str:
    """Return the ops that a wiring has more or less of than the first: what free links would leave."""
    if not longer_s:
        return f"ops as {first}'s"
    ordered = sorted(longer_s.items(), key=lambda item: -abs(item[1]))
    differences = (f"{kind} {'+' if seconds > 0.0 else '-'}{format_seconds(abs(seconds))}" for kind, seconds in ordered)
    return f"ops that differ from {first}'s, alone: {', '.join(differences)}"


def _load_text(prediction: Prediction) -> str:
    """Return what TPOT and TTFT of requests in flight are made of."""
    load, workload = prediction.load, prediction.confidence.scenario.workload
    in_flight = workload.concurrency
    if load is None or prediction.tpot_s is None or in_flight is None:
        return f"{prediction.variant}: TTFT waits for the prompts of all requests in flight"
    scenario = prediction.confidence.scenario
    # each stage has a part of the requests
    lanes = min(scenario.plan.pp, scenario.plan.group_requests(in_flight), load.slots)
    host_s = scenario.stack.host_request_s * load.requests_decoding / lanes + host_step_s(scenario, scenario.stack)
    waiting_s = prediction.ttft_s - load.decode_step_s - load.prompt_s - load.front_end_s
    lines = [
        f"{prediction.variant}: TPOT {format_seconds(prediction.tpot_s)} is a step that decodes "
        f"{load.requests_decoding:.1f} of {in_flight} requests, {format_seconds(load.decode_step_s)} (of it "
        f"{format_seconds(host_s)} on the CPU), and prompts of the others, {format_seconds(load.prompts_per_token_s)}",
        f"each prompt adds {format_seconds(load.prompt_s)} to steps; {load.prompt_steps:.1%} of the steps hold one",
        f"TTFT {format_seconds(prediction.ttft_s)} on average ({format_seconds(load.ttft_p50_s)} in the median) is "
        f"such a step, its own prompt, {format_seconds(load.front_end_s)} in the server's front end, and "
        f"{format_seconds(max(waiting_s, 0.0))} of waiting for other prompts"
        + (f" and for one of {load.slots:.1f} slots" if scenario.plan.group_requests(in_flight) > load.slots else ""),
    ]
    return "\n".join(lines)


def _op_table(title: str, step: ForwardPass) -> WholeTable:
    """Return the equal ops of all layers on one row, in the order of the last layer, where every join has happened."""
    rows: dict[tuple[str, str, float], list[SimulatedOp]] = {}
    layout = step.simulated[0].layout
    apart = {like for others in layout.next_to.values() for like in others}
    for member, like in reversed(list(zip(step.ops, layout.same_as, strict=True))):
        name = member.op.name.partition(".")[2] if member.op.layer >= 0 else member.op.name
        stream = "stream of its own" if like in apart else ""
        shape = ", ".join(filter(None, (member.op.shape.label, member.estimate.algorithm, stream)))
        rows.setdefault((name, shape, float(member.estimate.seconds)), []).append(member)
    body = []
    for (name, shape, each_s), members in reversed(rows.items()):
        count = sum(member.repeats for member in members)
        critical = sum(member.repeats for member in members if member.critical)
        all_s = sum(member.repeats * member.seconds for member in members)
        estimate = members[0].estimate
        body.append(
            (
                name,
                shape,
                estimate.source,
                str(count),
                format_seconds(each_s),
                format_seconds(all_s),
                f"{all_s / step.seconds:.1%}",
                f"{critical / count:.0%}",
            )
        )
    columns = ("op", "shape per GPU", "source", "count", "alone", "all", "of step", "critical")
    return table(columns, body, left=3, keys=2, title=title)


def _collectives_table(collectives: Sequence[Collective]) -> WholeTable:
    """Return a table of what each collective of a step waits for, can run next to, and lets continue."""
    rows = [
        (
            each.name,
            each.after,
            next_to_label(each),
            each.needed_by or "the next step",
            str(each.count),
            format_bytes(each.message_bytes),
            format_seconds(each.seconds),
            f"{each.hidden_s / each.seconds:.0%}",
        )
        for each in collectives
    ]
    return table(
        ("collective", "waits for", "can run next to", "needed by", "count", "message", "all", "hidden"), rows, left=4
    )
