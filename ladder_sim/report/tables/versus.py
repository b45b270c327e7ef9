"""Wirings and techniques side by side, as tables."""

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.versus import Versus
from ladder_sim.display.labels import hardware_label, stack_label, workload_label
from ladder_sim.graph.variants import parse
from ladder_sim.quality.published import quality_of
from ladder_sim.report.capacity import gpus_text
from ladder_sim.report.columns import interval_text
from ladder_sim.report.console import table
from ladder_sim.report.documents.versus import TIED, gain_cells, versus_document
from ladder_sim.report.tables.quality import adaptation_sentence
from ladder_sim.serving.sizing.fleet import Fleet
from ladder_sim.specs.techniques import engines


def versus_report(result: Versus, fleets: Mapping[str, Fleet] | None = None) -> RenderableType:
    """The verdict, what options gain, what they take, and what the leading ones need under load."""
    scenario, gains = result.scenario, gain_cells(versus_document(result))
    tables = (
        *(table((group, "gain (90%)", "prefill", "decode"), rows) for group, rows in gains.items()),
        _fleets(fleets),
        _techniques(result),
        _wirings(result),
    )
    return Group(
        Text(result.verdict, "bold"),
        Text(f"{scenario.model.name}, {hardware_label(scenario)}"),
        Text(f"{workload_label(scenario)}, {stack_label(scenario)}"),
        *(part for each in tables if each for part in (Text(), each)),
        Text(),
        *map(Text, _legend(result)),
    )


def _fleets(fleets: Mapping[str, Fleet] | None) -> RenderableType | None:
    columns = ("under load", "GPUs (90%)", "requests/s of one replica (90%)", "breaks first")
    rows = []
    for name, each in (fleets or {}).items():
        breaks = ", ".join(each.need.breaks)
        if each.need.replicas:
            rows.append((name, gpus_text(each.gpus), interval_text(each.rate_limit), breaks))
        else:
            rows.append((name, "none", "0", f"{breaks} on an idle replica"))
    return table(columns, rows, wrapped=()) if rows else None


def _techniques(result: Versus) -> RenderableType | None:
    columns = ("technique", "answers", "needs", "engines today")
    rows = [(name, each.answers, each.needs, engines(each.support)) for name, each in result.techniques.items()]
    return table(columns, rows, left=4, wrapped=columns[2:]) if rows else None


def _wirings(result: Versus) -> RenderableType | None:
    columns = ("wiring", "weights for", "engines today", "published quality")
    rows = []
    for name, each in result.wirings.items():
        quality = quality_of(name)
        published = quality.summary if quality else "-"
        if quality and not quality.rows and quality.relatives and quality.relatives[0].wiring in result.wirings:
            published = f"of {quality.relatives[0].wiring}"
        degree = "any TP" if each.is_shared else f"TP {result.scenario.plan.tp}"
        rows.append((name, degree, engines(parse(name).family.support), published))
    return table(columns, rows, left=4, wrapped=columns[3:]) if rows else None


def _legend(result: Versus) -> Iterator[str]:
    yield "gain: standard's time for a request over the option's; prefill, decode: of TTFT and TPOT"
    if any(result.tied(group[0], group) for group in (result.own, result.retrained) if group):
        yield f"{TIED} not told apart from the first of its table: the 90 % interval of their ratio holds 1"
    if result.cost:
        yield adaptation_sentence(result.cost)
    reasons: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield f"left out: {', '.join(names)}: {reason}"
