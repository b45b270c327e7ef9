"""What `serve` and `capacity` say alike: which requests arrive, how they are served, and what is bounded."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from ladder_sim.confidence import Confidence, Interval
from ladder_sim.display.document import Notes
from ladder_sim.display.labels import evidence_text, interval_text
from ladder_sim.report.columns import ROUGH
from ladder_sim.serving import SLO, Capacity, Request, Served, Service, Trace, Traffic
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.intervals import steps_note
from ladder_sim.serving.sizing.search import ENDLESS
from ladder_sim.specs.arguments import REQUESTS
from ladder_sim.units import counted_text, step_for
from ladder_sim.validation.load import errors_of
from ladder_sim.wirings.names import NO_COMMUNICATION

_Each = TypeVar("_Each")


def requests_label(requests: Traffic | Trace | Sequence[Request]) -> str:
    """Return which requests arrive, in a phrase."""
    lengths = tokens_label(requests)
    return f"{requests.arrivals}, prompt {lengths}" if isinstance(requests, Traffic) else lengths


def tokens_label(requests: Traffic | Trace | Sequence[Request]) -> str:
    """Return how long requests are, or where they are from, in words."""
    if isinstance(requests, Trace):
        units = requests.units
        return f"trace {requests.path.name}" + (f" ({units})" if units else "")
    if not isinstance(requests, Traffic):
        return "given requests"
    shared = f"{requests.prefix} shared + " if requests.prefix else ""
    return f"{shared}{requests.prompt} + {requests.gen}"


def manner_label(service: Service) -> str:
    """Return who schedules, replicas for prompts, and drafted tokens, where any is unusual, in words."""
    parts = [f"scheduled by {service.engine} itself"] if service.engine else []
    if service.prefill:
        parts.append(f"prompts on {service.prefill.plan}")
    return "".join(f", {part}" for part in parts) + drafted_label(service.speculation)


def drafted_label(speculation: Speculation | None) -> str:
    """Return the drafted tokens in words, if there are any."""
    if speculation is None:
        return ""
    rates = "/".join(f"{rate:.2g}" for rate in speculation.acceptance)
    return f", {speculation.drafts} drafted, accepted {rates}"


def slo_label(slo: SLO) -> str:
    """Return the bounds of an SLO as text, e.g. "TTFT p95 500 ms, TPOT p95 30 ms"."""
    return ", ".join(f"{bound_label(each.name)} {bound_text(each.seconds)}" for each in slo.bounds)


def bound_text(seconds: float) -> str:
    """Return a bound on a time with no more digits than it needs: "30 ms"."""
    size, unit = step_for(seconds, "s")
    return f"{seconds / size:.4g} {unit}"


def bound_label(name: str) -> str:
    """Return what breaks in a search, in words: "TTFT p95" for "ttft_p95"."""
    metric, _, percentile = name.partition("_")
    return "queue" if name == ENDLESS else f"{metric.upper()} {percentile}"


def first_and_best(answer: Mapping[str, _Each], rank: Callable[[_Each], Any]) -> list[str]:
    """Return the first variant, and the first by `rank` of the others that can be run."""
    first, *others = answer
    able = [name for name in others if name != NO_COMMUNICATION]
    return [first, *([min(able, key=lambda name: rank(answer[name]))] if able else [])]


def time_text(interval: Interval, scale: float) -> str:
    """Return a time and its interval as text; a wide interval leaves at most two known digits.

    Examples
    --------
    >>> time_text(Interval(value=0.0863, low=0.0519, high=0.1446), 1e-3), time_text(Interval.around(0.0143, 0.2), 1e-3)
    ('86 (52-145)', '14.3 (11.7-17.5)')
    """
    rough = interval.value > 0.0 and not (interval.known and interval.log_width <= ROUGH)
    places = max(0, 1 - math.floor(math.log10(interval.value / scale))) if rough else None
    return interval_text(interval, scale=scale, decimals=places)


def seconds_text(interval: Interval) -> str:
    """Return a time with its unit and interval as text: "156 ms (92-270)"."""
    size, unit = step_for(interval.value, "s")
    value, _, ends = time_text(interval, size).partition(" ")
    return f"{value} {unit} {ends}".rstrip()


def load_fields(answer: Served | Capacity) -> dict[str, Any]:
    """Return what was served, and where, as fields of JSON."""
    requests = answer.load
    if isinstance(requests, Sequence):
        load: dict[str, Any] = {"requests": len(requests)}
    else:
        load = {
            name: value if isinstance(value, int | float | None) else str(value)
            for name, value in asdict(requests).items()
        }
        for name in ("prompt", "gen", "units"):
            # random ones have lengths, recorded ones units
            if hasattr(requests, name):
                load[name] = str(getattr(requests, name))
    # the load replaces these
    given = {name: value for name, value in answer.scenario.fields().items() if name not in REQUESTS}
    return {"scenario": given, "load": load}


def notes_of(answer: Served | Capacity, confidences: Mapping[str, Confidence]) -> Notes:
    """Return an answer's notes, without compared runs if the steps are a running engine's own."""
    about = (*answer.cautions, *filter(None, [answer.interval_note]))
    if answer.steps is None:
        return Notes(confidences=confidences, about=about)
    rewired = _rewired(answer)
    confidence = next(iter(confidences.values()), None)
    of_rewired = {", ".join(rewired): confidence} if rewired and confidence else {}
    return Notes(confidences=of_rewired, about=(steps_note(answer.steps, answer.scenario, rewired), *about))


def cautions_of(answer: Served | Capacity, notes: Notes) -> list[str]:
    """Return the warnings of the default answer, which says elsewhere what intervals cover and where steps are from."""
    elsewhere = {answer.interval_note}
    if answer.steps:
        elsewhere.add(steps_note(answer.steps, answer.scenario, _rewired(answer)))
    return [text for text in notes.warnings if text not in elsewhere]


def evidence_of(answer: Served | Capacity, confidences: Sequence[Confidence]) -> str:
    """Return the nearest runs, or the server whose steps are used, as text."""
    if answer.steps is None:
        return " ".join(filter(None, [evidence_text(*confidences, wirings=list(answer)), _published(confidences)]))
    note = steps_note(answer.steps, answer.scenario, _rewired(answer))
    return f"{note[0].upper()}{note[1:]}."


def _published(confidences: Sequence[Confidence]) -> str:
    """Return how far predictions were off loads that were published of the same deployment; empty: there are none."""
    alike = {error.load: error for each in confidences for error in errors_of(each.scenario)}
    if not alike:
        return ""
    errors = {
        label: [each.errors[name] for each in alike.values() if name in each.errors]
        for label, name in (("time between tokens", "itl_mean_s"), ("TPOT", "tpot_mean_s"), ("TTFT", "ttft_mean_s"))
    }
    texts = [f"{label} {_off(each)}" for label, each in errors.items() if each]
    return (
        f"{counted_text(len(alike), 'published load')} of this deployment (`validate published`): {', '.join(texts)}."
    )


def _off(errors: Sequence[float]) -> str:
    """Return the least and the largest of relative errors as text."""
    ends = dict.fromkeys(f"{100.0 * error:+.0f}" for error in (min(errors), max(errors)))
    return f"{' to '.join(ends)} %"


def cost_text(prices: Mapping[str, str]) -> str:
    """Return the prices in US dollars by variant, in a sentence."""
    return f"A million new tokens cost {', '.join(f'${each} with {name}' for name, each in prices.items())}."


def _rewired(variants: Iterable[str]) -> list[str]:
    return [name for name in variants if name != "standard"]
