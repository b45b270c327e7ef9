"""The page: the question, its answer as a sentence and one picture, and the frame of the views."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from math import floor, log10
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ladder_sim.confidence import Interval
from ladder_sim.confidence.runs import is_faster
from ladder_sim.display.document import Notes
from ladder_sim.display.labels import evidence_text, interval_text, scenario_label, wiring_label
from ladder_sim.errors import LadderSimError
from ladder_sim.explorer.answers import LIMIT, TECHNIQUE, Answer, Queries, Row
from ladder_sim.explorer.controls import LOAD_SETTINGS, Choice, entry, page_words, sentence, values, ways_out
from ladder_sim.explorer.markup import Markup, join, tag
from ladder_sim.explorer.panels import DARK
from ladder_sim.explorer.snippets import command_line, python_code
from ladder_sim.explorer.state import TABS
from ladder_sim.prediction import own_variant
from ladder_sim.report.figures.style import variant_colour
from ladder_sim.report.prediction import reason_text
from ladder_sim.units import counted_text, format_bytes

TITLES = {"timeline": "Timeline", "whatif": "What if", "plans": "Plans", "load": "Load", "evidence": "Evidence"}
_PAPER = "https://arxiv.org/abs/2501.06589"
# share of the picture on both sides of what it holds, and its most ticks
_MARGIN, _TICKS = 0.04, 8
# a speedup far above the others would press them flat
_FAR = 2.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the page gets for a query."""

    query: str
    """The link, written in one way; empty: it could not be read."""
    parts: Mapping[str, str]
    """HTML by the id of its element; "error" is empty where there is an answer."""
    fields: Mapping[str, tuple[str, str]]
    """Value and hint of each field of the sheet."""
    copies: Mapping[str, str]
    """Texts to copy, by name."""

    @property
    def plain(self) -> dict[str, Any]:
        """The reply as JSON can hold it."""
        return {"query": self.query, "parts": self.parts, "fields": self.fields, "copies": self.copies}


def reply(queries: Queries, query: object, held: Collection[str] | None = None) -> Reply:
    """Return what the page shows for a query: the answer, or why there is none.

    `held` are the questions that a page without a server can answer; its lists offer no others.
    """
    try:
        state = queries.state(query)
    except LadderSimError as error:
        return Reply(query="", parts={"error": banner(error)}, fields={}, copies={})
    own = queries.question(query)

    def offered(choice: Choice) -> bool:
        if held is None:
            return True
        try:
            changed = {**dict(parse_qsl(own)), **choice.clears, **choice.sets}
            return not choice.opens and queries.question(urlencode(changed)) in held
        except LadderSimError:
            return False

    setup = None
    try:
        setup = queries.setup(own)
        answer = queries.answer(own)
        pinned = [queries.answer(queries.question(pin)) for pin in state.pins]
    except LadderSimError as error:
        parts = {"error": banner(error)} | ({"question": sentence(setup, queries.allowlist, offered)} if setup else {})
        fields = values(state, setup, queries.allowlist) if held is None else {}
        return Reply(query=state.query(), parts=parts, fields=fields, copies={})
    return Reply(
        query=state.query(),
        parts={
            "error": "",
            "question": sentence(answer, queries.allowlist, offered),
            "fine": fine(answer),
            "answer": join(answer_parts(answer, pinned)),
        },
        fields=values(state, answer, queries.allowlist) if held is None else {},
        copies={
            "cli": command_line(state, queries.allowlist),
            "python": python_code(state, queries.allowlist),
            "title": scenario_label(answer.scenario),
        },
    )


def banner(error: LadderSimError) -> Markup:
    """Return why a question has no answer, and its ways out, a button each."""
    ways = [
        tag("button", text, type="button", data_change=change, class_="btn line")
        for text, change in ways_out(error.hint)
    ]
    hint = page_words(error.hint)
    said = tag("strong", page_words(error.message)), f". {hint[:1].upper()}{hint[1:]}."
    return tag("div", tag("p", said), tag("div", ways, class_="ways") if ways else None, class_="banner")


def fine(answer: Answer) -> Markup:
    """Return the plan, the lengths and the memory in a line."""
    workload, memory = answer.scenario.workload, answer.predictions["standard"].memory
    plan, gpus = answer.scenario.plan, answer.scenario.nodes * answer.scenario.cluster.gpus_per_node
    shown = [
        f"{plan} on {plan.gpus} of {gpus}" if plan.gpus < gpus else str(plan),
        workload.dtype,
        f"{workload.prompt} prompt + {workload.gen} new tokens",
        f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} per GPU",
    ]
    if answer.scenario.techniques.chosen:
        shown.insert(2, answer.scenario.techniques.name)
    if answer.state.measured:
        shown.append(f"measured: {answer.state.measured}")
    memory_parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.part_bytes.items())
    parts = [tag("span", text, title=memory_parts if text is shown[-1] else None) for text in shown]
    return join([parts, tag("button", "All settings", type="button", data_open="settings")])


def answer_parts(answer: Answer, pinned: Sequence[Answer] = ()) -> Iterator[Markup]:
    """Yield the answer: a sentence, the picture, and three notes."""
    yield tag("h1", verdict(answer))
    yield tag("div", data_view="best-plan", class_="besides")
    yield picture(answer, pinned)
    if pinned:
        names = [f"{mark} {scenario_label(each.scenario)}" for mark, each in zip("AB", pinned, strict=False)]
        unpin = tag("button", "Unpin", type="button", id="unpin", class_="quiet")
        yield tag("p", "Hollow diamonds: ", "; ".join(names), ". ", unpin, class_="tail")
    notes = Notes(confidences={"": answer.predictions.confidence}, used=answer.served_settings)
    yield tag(
        "div",
        _note("Why", page_words(reason_text(answer.predictions))),
        _note("Evidence", evidence_text(answer.predictions.confidence)),
        tag("div", tag("b", "Before you retrain"), tag("div", data_view="before")),
        class_="notes",
    )
    yield tag("div", fold("options", "All options"), notices(notes.warnings), class_="more")


def fold(view: str, title: str) -> Markup:
    """Return a folded part, which is computed when it is opened."""
    return tag("details", tag("summary", title), tag("div", data_view=view), class_="fold")


def notices(texts: Iterable[str], title: str = "") -> Markup:
    """Return texts as a folded list; without a title they are warnings."""
    items = [tag("li", page_words(text)) for text in texts]
    shown = tag("summary", title or counted_text(len(items), "warning"))
    return tag("details", shown, tag("ul", items), class_="fold") if items else Markup()


def _note(title: str, text: str) -> Markup:
    return tag("div", tag("b", title), tag("p", text))


def verdict(answer: Answer) -> list[object]:
    """Return the answer in a sentence or two, the interval in bold."""
    best = answer.best
    if best is None:
        standard = answer.predictions["standard"]
        return ["Standard makes ", tag("b", f"{interval_text(standard.tokens_per_s)} tok/s"), " here."]
    own = own_variant(answer.scenario.model) == best.variant
    price = "The model is trained so" if own else "It needs retraining"
    return [*_gains(best.variant, best.speedup), f" {price}; {_kept(answer)}"]


def _gains(variant: str, gain: Interval) -> list[object]:
    name = "Ladder Residual" if variant == "ladder" else wiring_label(variant, sentence=True)
    likely = f"most likely {gain.value:.2f}"
    if not gain.known:
        return [f"{name} would perhaps make each request {gain.value:.2f} times as fast; its interval is not known."]
    ends = tag("b", f"{gain.low:.2f} to {gain.high:.2f} times as fast")
    if gain.low > 1.0:
        return [f"{name} would make each request ", ends, f", {likely}."]
    if gain.high < 1.0:
        return [f"{name} would make each request slower: ", ends, f", {likely}."]
    return [f"{name} is not clearly faster: a request would be ", ends, f", {likely}."]


def _kept(answer: Answer) -> str:
    """Return what the technique of the first picture gives with the weights of the model, as half a sentence."""
    kept = next((row for row in answer.rows if row.name == TECHNIQUE), None)
    if kept is None:
        if answer.scenario.techniques.chosen:
            return f"every option here runs with {answer.scenario.techniques.name}."
        return f"{TECHNIQUE}, which keeps your weights, does not apply here."
    if is_faster(kept.gain):
        return f"with your own weights, {TECHNIQUE} gives {kept.gain.low:.2f} to {kept.gain.high:.2f}."
    return f"with your own weights, {TECHNIQUE} is not clearly faster than standard."


def picture(answer: Answer, pinned: Sequence[Answer] = ()) -> Markup:
    """Return the options in groups: each a dot on a scale, its 90 % interval, and the numbers."""
    scale = _Scale(answer.rows)
    first_token = any(each.tpot is None for each in answer.predictions.values())
    body: list[Markup] = []
    group = ""
    for row in answer.rows:
        if row.group != group:
            group = row.group
            body.append(tag("div", tag("span", group), tag("div", class_="track"), class_="grp"))
        body.append(_row(row, scale, pinned, first_token=first_token))
    what = "TTFT" if first_token else "TPOT"
    titles = [tag("span", title) for title in ("", "", "speedup (90 %)", f"{what}, ms (90 %)")]
    head = tag("div", *titles, class_="fa fh")
    label = "; ".join(f"{row.name} {row.gain.text}" for row in answer.rows)
    ticks = [tag("span", scale.text(tick), style=f"left:{scale.at(tick):.2f}%") for tick in scale.ticks]
    axis = tag("div", tag("span"), tag("span", ticks, class_="axis"), tag("span"), tag("span"), class_="fa")
    label = f"Speedup over standard: {label}"
    return tag("div", head, body, axis, class_="forest", style=scale.style, role="img", aria_label=label)


def tick_step(span: float) -> float:
    """Return the distance of an axis' ticks: a round number, of which a span has a few."""
    power = 10.0 ** floor(log10(span))
    return next(power * each for each in (0.1, 0.2, 0.5, 1.0, 2.0) if span / (power * each) <= _TICKS)


class _Scale:
    """A horizontal axis that holds 1 and the intervals, but for ends far above all values."""

    def __init__(self, rows: Sequence[Row]) -> None:
        values_shown = [row.gain.value for row in rows if row.group != LIMIT] or [1.0]
        most = max(_FAR * max(values_shown), 1.2)
        low = min(1.0, *(row.gain.low if row.gain.known else row.gain.value for row in rows))
        high = min(most, max(1.0, *(row.gain.high if row.gain.known else row.gain.value for row in rows)))
        margin = max(_MARGIN * (high - low), 0.01)
        self.low, self.high = low - margin, high + margin
        self.step = tick_step(self.high - self.low)
        first = floor(self.low / self.step) + 1
        self.ticks = [number * self.step for number in range(first, floor(self.high / self.step) + 1)]

    def at(self, value: float) -> float:
        """Return a value's place in percent."""
        return min(100.0, max(0.0, 100.0 * (value - self.low) / (self.high - self.low)))

    def text(self, tick: float) -> str:
        """Return the label of a tick."""
        return "1\N{MULTIPLICATION SIGN}" if abs(tick - 1.0) < 1e-9 else f"{tick:.{1 if self.step >= 0.1 else 2}f}"

    @property
    def style(self) -> str:
        """The lines of the ticks, as variables of the style sheet."""
        return f"--one:{self.at(1.0):.2f}%;--step:{self.at(self.low + self.step):.2f}%"


def _row(row: Row, scale: _Scale, pinned: Sequence[Answer], *, first_token: bool) -> Markup:
    gain, colour = row.gain, colour_of(row.name)
    own = gain.low == gain.high
    dots: list[Markup] = []
    if not own and gain.known:
        low, high = scale.at(gain.low), scale.at(gain.high)
        place = f"left:{low:.2f}%;width:{high - low:.2f}%;background:{colour}"
        dots.append(tag("i", class_="ci cut" if gain.high > scale.high else "ci", style=place))
    hollow = " open" if row.group == LIMIT else ""
    style = f"left:{scale.at(gain.value):.2f}%;background:{colour};border-color:{colour}"
    dots.append(tag("i", class_=f"dot{hollow}", style=style))
    for mark, each in zip("AB", pinned, strict=False):
        for other in each.rows:
            if other.name == row.name and not own:
                text = f"{mark}: {other.gain.text}"
                dots.append(
                    tag(
                        "i",
                        class_="pin",
                        style=f"left:{scale.at(other.gain.value):.2f}%;border-color:{colour}",
                        title=text,
                    )
                )
    name = wiring_label(row.name).strip("()")
    speedup = ("1", "") if own else (f"{gain.value:.2f}", ends(gain))
    shown = row.prediction.ttft if first_token else row.prediction.tpot
    return tag(
        "div",
        tag("div", name, class_="n"),
        tag("div", dots, class_="track"),
        tag("div", speedup[0], " ", tag("span", speedup[1]), class_="v"),
        tag("div", *(_milliseconds(shown) if shown else ("-",)), class_="v t"),
        class_="fr",
        data_option=row.name,
    )


def ends(gain: Interval) -> str:
    """Return the ends of the interval of a speedup."""
    return f"{gain.low:.2f}\N{EN DASH}{gain.high:.2f}" if gain.known else "not known"


def _milliseconds(time_s: Interval) -> tuple[object, ...]:
    value, _, rest = interval_text(time_s, scale=1e-3).partition(" ")
    return value, " ", tag("span", rest.strip("()").replace("-", "\N{EN DASH}"))


def colour_of(option: str) -> str:
    """Return the colour of an option as a variable of the style sheet."""
    wiring, _, technique = option.partition(" + ")
    if wiring == TECHNIQUE or (technique and wiring == "standard"):
        return "var(--fused)"
    known = {"standard", "ladder", "parallel", "upper-bound"}
    return f"var(--{wiring})" if wiring in known else variant_colour(wiring)


def document(first: Reply, settings: Markup, *, scripts: Sequence[str], exported: bool = False) -> str:
    """Return the whole page with its first answer; `scripts` are addresses, and `exported` means without a server."""
    menu = [
        tag("a", "Prediction ", tag("small", "CSV"), data_file="prediction.csv"),
        tag("a", "Prediction ", tag("small", "JSON"), data_file="prediction.json"),
        tag("a", "Decode step ", tag("small", "Perfetto"), data_file="decode.perfetto.json"),
        tag("a", "Prefill ", tag("small", "Perfetto"), data_file="prefill.perfetto.json"),
        tag("a", "This page, offline ", tag("small", "ZIP"), data_file="page.zip"),
    ]
    copies = [
        tag("button", text, " ", tag("small", "copy"), type="button", data_copy=name)
        for name, text in (("cli", "Command line"), ("python", "Python"))
    ]
    export = tag(
        "details",
        tag("summary", "Export", class_="btn line"),
        tag("div", [] if exported else menu, copies, class_="pop"),
        class_="menu",
        id="export",
    )
    buttons = [
        tag("button", "Copy link", type="button", class_="btn line", data_copy="link"),
        export,
        None if exported else tag("button", "Pin to compare", type="button", class_="btn line hide", id="pin"),
        tag("button", "Dark", type="button", class_="btn line", id="theme"),
    ]
    tabs = [
        tag(
            "button",
            TITLES[name],
            tag("kbd", str(number), aria_hidden="true"),
            type="button",
            role="tab",
            id=f"tab-{name}",
            aria_controls="view",
            aria_selected="false",
            data_tab=name,
        )
        for number, name in enumerate(TABS, 1)
    ]
    body = [
        tag("a", "Skip to the answer", href="#answer", class_="skip"),
        tag("header", tag("div", "ladder-sim", class_="brand"), buttons, class_="top wrap"),
        tag(
            "main",
            tag("section", Markup(first.parts.get("question", "")), id="question", class_="ask", aria_label="Question"),
            tag("div", Markup(first.parts.get("fine", "")), id="fine", class_="fine"),
            tag("div", Markup(first.parts.get("error", "")), id="error", role="alert"),
            tag("section", Markup(first.parts.get("answer", "")), id="answer", class_="card answer", tabindex="-1"),
            tag("div", tabs, role="tablist", aria_label="Views", class_="tabs"),
            tag("section", id="view", class_="card view", role="tabpanel", tabindex="-1"),
            tag(
                "div",
                tag("code", id="command", tabindex="0"),
                tag("button", "Copy", type="button", class_="btn line", data_copy="command"),
                class_="cmd",
            ),
            class_="wrap",
        ),
        tag("footer", _keys(), _about(exported), class_="foot wrap"),
        _dialog(
            "settings",
            "All settings",
            tag(
                "input",
                id="find",
                type="search",
                class_="find",
                placeholder="Find a setting, e.g. floor",
                aria_label="Find a setting",
            ),
            settings,
        ),
        _dialog("help", "Words and keys", _glossary()),
        tag("input", type="file", id="upload", accept=".json,application/json", hidden=True, aria_label="config.json"),
        tag("div", id="said", role="status"),
    ]
    state = json.dumps({"reply": first.plain, "dark": DARK, "exported": exported}).replace("<", "\\u003c")
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "ladder-sim: what does Ladder Residual buy?"),
        tag("link", rel="stylesheet", href="page.css"),
        tag("link", rel="icon", href="data:,"),
    ]
    data = tag("script", Markup(state), type="application/json", id="state")
    loads = [tag("script", src=script, defer=True) for script in scripts]
    page = tag(
        "html", tag("head", head, loads), tag("body", body, data, class_="copy" if exported else None), lang="en"
    )
    return f"<!doctype html>\n{page}\n"


def asset(name: str) -> str:
    """Return a file of the page."""
    return (resources.files("ladder_sim.explorer") / "assets" / name).read_text("utf-8")


def _dialog(name: str, title: str, *content: Markup) -> Markup:
    done = tag("button", "Done", type="button", class_="btn line", data_close=name)
    head = tag("header", tag("h2", title, id=f"{name}-title"), done)
    return tag("dialog", tag("div", head, content, class_="sheet"), id=name, aria_labelledby=f"{name}-title")


_KEYS = {"/": "model", "1-5": "views", "s": "link", "e": "export", "p": "pin", "?": "help"}


def _keys() -> Markup:
    return tag("span", [(tag("kbd", key), f" {what} ") for key, what in _KEYS.items()], class_="keys")


def _about(exported: bool) -> Markup:
    still = "A copy without a server: it holds the questions that its lists offer. " if exported else ""
    paper = tag("a", "The paper", href=_PAPER, target="_blank", rel="noopener")
    limits = "Intervals hold nine of ten runs. Predicted, not measured: quality after retraining is not predicted. "
    return tag("span", still, limits, paper)


_WORDS: Mapping[str, str] = {
    "speedup": "Time of a request with standard over its time with the option.",
    "90 %": "The interval that holds the true value in nine of ten cases; wider where no run like it was compared.",
    "TTFT": "Time to first token: waiting, and the prefill of the prompt.",
    "TPOT": "Time per output token after the first.",
    "tok/s": "New tokens per second of all requests together, prefill included.",
    "in flight": "Requests that an engine with continuous batching keeps running at a time.",
    "static batch": "Requests that start and end together.",
    "all-reduce": "The sum over all GPUs after each block, which standard waits for.",
    "all-reduce floor": "What the smallest all-reduce takes, however little is sent.",
    "exposed": "Communication during which no kernel runs; the rest is hidden.",
    "standard, ladder, parallel": "Residual wirings: which block's output the next one reads.",
    "no communication": "The limit: the same kernels with free links. Nobody can run it.",
    "fused-norm": "An all-reduce with the norm after it in one kernel; keeps the weights.",
    "SLO": "Bounds on times that 95 % of requests keep.",
    "measured, fitted, transferred, roofline": (
        "Sources of a kernel's time: interpolated between measurements, beyond them, carried over from other "
        "hardware, or from the datasheet."
    ),
}


def _glossary() -> Markup:
    return join([tag("dl", [(tag("dt", term), tag("dd", text)) for term, text in _WORDS.items()]), tag("p", _keys())])


def load_form() -> Markup:
    """Return the fields of requests under load."""
    fields = [entry(each, prefix="load") for each in LOAD_SETTINGS]
    return tag("div", fields, class_="slo")
