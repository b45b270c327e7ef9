"""What would change: gains along one figure or two, with bands, and what the time is sensitive to."""

from typing import Any
from urllib.parse import urlencode

import numpy as np

from ladder_sim.analysis.sensitivity import sensitivity
from ladder_sim.confidence import Interval
from ladder_sim.costs.profile import NO_PROFILE
from ladder_sim.display.document import Document
from ladder_sim.display.labels import field_text, field_title, scenario_label, wiring_label
from ladder_sim.errors import UsageError
from ladder_sim.explorer.answers import Answer, Queries
from ladder_sim.explorer.controls import AXIS_FIELDS
from ladder_sim.explorer.markup import join, tag
from ladder_sim.explorer.page import fold
from ladder_sim.explorer.panels import Panel, chart, figures_of, file_link, headed, tail
from ladder_sim.explorer.snippets import written
from ladder_sim.report.columns import times_text
from ladder_sim.report.sensitivity import tornado_figure
from ladder_sim.report.sweep import speedup_lines, speedup_map
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.units import short_name
from ladder_sim.wirings.names import NO_COMMUNICATION

# values of a curve, and of each side of a map
_CURVE, _MAP = 25, 40


def whatif(queries: Queries, query: str) -> Panel:
    """Return the gains along the busiest link's figures, or along one field that the reader has chosen."""
    answer = queries.answer(query)
    variants = tuple(answer.predictions)
    speedups = {name: each.request_speedup for name, each in answer.predictions.items() if name != "standard"}
    charts, rows, sentences, commands = [], [], [], []
    figures: dict[str, Any] = {}
    for number, name in enumerate(answer.along):
        here = answer.current(name)
        values = answer.scanned(name, _CURVE)
        table = queries.sweep(answer, variants, {name: values})
        own = f"curve{number}"
        charts.append(chart(own, field_title(name), kind="curve"))
        figures |= figures_of(**{own: speedup_lines(table, compact=True, now=(here, speedups))})
        # the other figure as it is
        held = {other: answer.current(other) for other in answer.along}
        rows += [{**held, **row} for row in table.report.values().rows]
        sentences.append(_most(answer, name, table))
        own_flag = {name: values} if name in ARGUMENTS else {"set": f"{short_name(name)}={values}"}
        shown = ",".join(variants) if answer.state.variants else None
        commands.append(written("sweep", answer.state, queries.allowlist, name, variant=shown, **own_flag))
    options = [
        tag("option", "the busiest link", value="along="),
        *(
            tag("option", field_title(name), value=urlencode({"along": name}), selected=name == answer.state.along)
            for name in AXIS_FIELDS
        ),
    ]
    select = tag("label", "Along ", tag("select", options, id="along", data_changes=True), class_="inline")
    only = "Only this figure changes; the rest of the scenario stays. The mark is your question."
    return Panel(
        html=join(
            [
                headed(" ".join(sentences[:1]), select, file_link("whatif.csv", "CSV")),
                tag("div", charts, class_="two" if len(charts) > 1 else "alone"),
                tail(only, " Bands: 90 %."),
                tag(
                    "div",
                    fold("map", "Over two figures"),
                    fold("tornado", "What matters most"),
                    class_="more",
                ),
            ]
        ),
        figures=figures,
        document=Document.of_rows({}, rows),
        command=commands[0],
    )


def _most(answer: Answer, name: str, table: Any) -> str:
    """Return where the best wiring gains most along a field."""
    best = answer.best
    if best is None:
        return "Standard alone is shown."
    gains = table[f"{best.variant}.speedup"]
    at = int(np.nanargmax(gains))
    most = Interval(
        value=float(gains[at]),
        low=float(table[f"{best.variant}.speedup_low"][at]),
        high=float(table[f"{best.variant}.speedup_high"][at]),
    )
    where = field_text(name, table[name][at].item())
    label = wiring_label(best.variant, sentence=True)
    here = field_text(name, answer.current(name))
    said = f"{label} gains most, {times_text(most)}, at {where}; here, at {here}, {best.speedup.value:.2f}x."
    others = [each for each in answer.predictions if each not in ("standard", best.variant, NO_COMMUNICATION)]
    for other in others:
        more = np.flatnonzero(table[f"{other}.speedup"] > gains * 1.005)
        if len(more):
            low, high = (field_text(name, table[name][end].item()) for end in (more[0], more[-1]))
            said += f" {wiring_label(other, sentence=True)} gains more from {low} to {high}."
            break
    return said


def two_figures(queries: Queries, query: str) -> Panel:
    """Return one variant's speedup over another as a map of two fields."""
    answer = queries.answer(query)
    across, up = answer.across, answer.up
    if across == up:
        raise UsageError("both axes of the map are the same", hint="choose another field for one of them")
    axes = {name: answer.scanned(name, _MAP) for name in (up, across)}
    state = answer.state
    table = queries.sweep(answer, tuple(dict.fromkeys((state.variant, state.over))), axes)
    if min(len(set(table[name].tolist())) for name in axes) < 2:
        raise UsageError("one axis of the map has one value", hint="choose another field, or more GPUs")
    now = answer.current(across), answer.current(up)
    drawn = speedup_map(table, state.variant, state.over, compact=True, now=now)
    selects = []
    for key, title, chosen in (("across", "To the right ", across), ("up", "Upwards ", up)):
        options = [
            tag("option", field_title(name), value=urlencode({key: name}), selected=name == chosen)
            for name in AXIS_FIELDS
        ]
        selects.append(tag("label", title, tag("select", options, id=key, data_changes=True), class_="inline"))
    title = f"Speedup of {state.variant} over {state.over}"
    links = tag("div", selects, file_link("map.csv", "CSV"), class_="get")
    blank = None if table.feasible.all() else tail("Blank: the scenario cannot run there.")
    return Panel(
        html=join([links, chart("map", title, kind="tall"), blank]),
        figures=figures_of(map=drawn),
        document=table.report.values(),
    )


def tornado(queries: Queries, query: str) -> Panel:
    """Return what 10 % more or less of each figure does to the time of a request."""
    answer = queries.answer(query)
    variant = answer.chosen.variant
    result = sensitivity(answer.scenario, [variant], profile=answer.profile or NO_PROFILE, ignore_memory=True)
    drawn = tornado_figure(result, variant, scenario_label(answer.scenario), compact=True)
    links = tag("div", file_link("tornado.csv", "CSV"), class_="get")
    return Panel(
        html=join(
            [links, chart("tornado", f"Request time of {variant} with 10 % more or less of a figure", kind="taller")]
        ),
        figures=figures_of(tornado=drawn),
        document=result.report.values(),
    )
