"""What runs when: two layers of a step, lane by lane, where the time of a request goes, and its messages."""

from collections.abc import Sequence

from ladder_sim.display.labels import LEGEND, next_to_label, wiring_label
from ladder_sim.errors import UsageError
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.markup import Markup, join, tag
from ladder_sim.explorer.page import fold, tick_step
from ladder_sim.explorer.panels import Panel, chart, figures_of, file_link, grid, headed, tail
from ladder_sim.explorer.snippets import command_line
from ladder_sim.prediction import Prediction
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.prediction import Bar, breakdown_figure, exposed_us, step_bars
from ladder_sim.simulate.lower import COMM, COMPUTE
from ladder_sim.units import format_seconds

# op of a kernel -> its name on a bar that has room
_SHORT = {"qkv": "QKV", "attention": "attention", "o": "out", "up": "MLP up", "down": "MLP down", "experts": "experts"}
# of a bar that has room for a name: percent of the picture for each letter
_LETTER = 0.72


def timeline(queries: Queries, query: str) -> Panel:
    """Return what each stream of a GPU does in two layers, with standard and with the best wiring."""
    answer = queries.answer(query)
    phase = answer.state.phase
    shown = [answer.predictions["standard"], *filter(None, [answer.best])]
    bars = {each.variant: _bars(each, phase) for each in shown}
    end_us = max(bar.end_us for own in bars.values() for bar in own)
    lengths = {name: max(bar.end_us for bar in own) for name, own in bars.items()}
    exposed = {name: list(exposed_us(own)) for name, own in bars.items()}
    times = [
        (tag("b", format_seconds(1e-6 * lengths[name])), f" with {name} ({_waiting(exposed[name], lengths[name])})")
        for name in bars
    ]
    said = [f"In a {phase} step two layers take ", times[0], *((" and ", each) for each in times[1:]), "."]
    other = "prefill" if phase == "decode" else "decode"
    rows = [_lanes(name, own, end_us, exposed[name]) for name, own in bars.items()]
    step = tick_step(end_us)
    ticks = [
        tag("span", f"{number * step:g}" + ("" if number else " us"), style=f"left:{100 * number * step / end_us:.2f}%")
        for number in range(int(end_us / step) + 1)
    ]
    kinds = dict.fromkeys((_kind(bar)[1], _kind(bar)[0]) for own in bars.values() for bar in own)
    legend = [tag("span", tag("i", class_=css), name) for name, css in kinds]
    if any(exposed.values()):
        legend.append(tag("span", tag("i", class_="hatch"), "exposed: no kernel runs"))
    return Panel(
        html=join(
            [
                headed(
                    said,
                    tag("button", other.capitalize(), type="button", data_change=f"phase={other}"),
                    file_link(f"{phase}.perfetto.json", "Perfetto"),
                ),
                tag("div", rows, tag("div", ticks, class_="axis"), class_="lanes"),
                tag("div", legend, class_="legend"),
                tag(
                    "p",
                    "Point at a bar, or move along a lane with Tab and the arrow keys.",
                    id="op",
                    class_="tail",
                    role="status",
                ),
                fold("breakdown", "Where the time of a request goes"),
                fold("messages", "Messages, and what can hide them"),
            ]
        ),
        document=None,
        command=f"{command_line(answer.state, queries.allowlist)} --set timeline={phase}.html"
        if phase == "decode"
        else command_line(answer.state, queries.allowlist),
    )


def _bars(prediction: Prediction, phase: str) -> list[Bar]:
    step = prediction.request.prefill if phase == "prefill" else prediction.request.decode
    if step is None:
        raise UsageError("one new token needs no decode step", hint="ask for more 'New tokens'")
    return list(step_bars(step))


def _waiting(exposed: Sequence[tuple[float, float]], length_us: float) -> str:
    share = sum(end - start for start, end in exposed) / length_us
    return f"{100.0 * share:.0f} % waiting for messages"


def _kind(bar: Bar) -> tuple[str, str]:
    """Return the class of a bar in the style sheet, and its name."""
    name, _ = bar.kind
    return {
        "GEMM": ("gemm", "matrix product"),
        "experts": ("gemm", "matrix product"),
        "attention": ("attn", "attention"),
        "all-reduce": ("comm", "all-reduce"),
        "other messages": ("comm", "messages"),
    }.get(name, ("small", "norm, RoPE, activation"))


def _lanes(name: str, bars: Sequence[Bar], end_us: float, exposed: Sequence[tuple[float, float]]) -> Markup:
    parts = []
    for stream, title in ((COMPUTE, "compute"), (COMM, "links")):
        own = [bar for bar in bars if bar.stream == stream]
        inside = [_bar(bar, end_us, first=not number) for number, bar in enumerate(own)]
        if stream == COMM:
            inside += [
                tag("i", class_="hatch", style=_place(start, stop, end_us), aria_hidden="true")
                for start, stop in exposed
            ]
        lane = tag("div", inside, class_="lane", role="group", aria_label=f"{name}, {title}")
        parts.append(tag("div", tag("span", title), lane))
    length = max(bar.end_us for bar in bars)
    head = tag("b", name, " ", tag("span", format_seconds(1e-6 * length)))
    return tag("div", head, parts, class_="wiring")


def _bar(bar: Bar, end_us: float, *, first: bool) -> Markup:
    css, _ = _kind(bar)
    width = 100.0 * (bar.end_us - bar.start_us) / end_us
    name = _SHORT.get(bar.op.rpartition(".")[2], "")
    text = f"{bar.op}: {format_seconds(1e-6 * (bar.end_us - bar.start_us))}, {bar.source}"
    return tag(
        "span",
        name if name and width > _LETTER * (len(name) + 1) else None,
        class_=css,
        style=_place(bar.start_us, bar.end_us, end_us),
        role="img",
        aria_label=text,
        tabindex="0" if first else "-1",
    )


def _place(start: float, stop: float, end: float) -> str:
    return f"left:{100.0 * start / end:.3f}%;width:{100.0 * (stop - start) / end:.3f}%"


def breakdown(queries: Queries, query: str) -> Panel:
    """Return what the critical path of a request waits for, of every variant."""
    answer = queries.answer(query)
    drawn = breakdown_figure(answer.scenario, answer.predictions, compact=True)
    meaning = LEGEND["critical path"]
    said = tail(f"{meaning[:1].upper()}{meaning[1:]}.")
    return Panel(
        html=join([said, chart("breakdown", "Critical path of a request", kind="bars")]),
        figures=figures_of(breakdown=drawn),
    )


def messages(queries: Queries, query: str) -> Panel:
    """Return a table of every variant's collectives in most layers, and whether each can be hidden."""
    rows: list[tuple[str, ...]] = []
    groups: list[str] = []
    for name, prediction in queries.answer(query).predictions.items():
        usual = {each.name: each for each in prediction.collectives}
        for each in prediction.collectives:
            usual[each.name] = max(usual[each.name], each, key=lambda collective: collective.count)
        for each in usual.values():
            hidden = f"{each.hidden_s / each.seconds:.0%}"
            rows.append((each.name, hidden, next_to_label(each), each.needed_by or "the next step", each.after))
            groups.append(wiring_label(name).strip("()"))
    titles = ("message", "hidden", "can run next to", "needed by", "waits for")
    shown = WholeTable(titles, rows, len(titles), 1, frozenset(), "Messages of a decode step")
    return Panel(html=grid(shown, groups=groups) if rows else tail("None."))
