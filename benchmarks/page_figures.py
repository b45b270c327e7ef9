"""Draws figures of the pages.

Those in two schemes are docs/NAME-light.svg and docs/NAME-dark.svg; one that commands of its page draw is
docs/NAME.svg.

    python -m benchmarks.page_figures
    python -m benchmarks.page_figures how/contention

Each file also holds the numbers that it draws: tests/project/test_page_figures.py compares them with the code's.
"""

import contextlib
import io
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.accuracy import collectives_s
from benchmarks.checked_parts import ENGINES
from benchmarks.evidence import LEVEL, MODELS, servings
from benchmarks.pages import DOCS, SCHEMES
from ladder_sim import Scenario, predict
from ladder_sim.cli.main import main as ladder_sim
from ladder_sim.explorer.panels import DARK, on_page
from ladder_sim.report.errors import error_figure
from ladder_sim.report.figures import style
from ladder_sim.report.figures.prediction import timeline_figure
from ladder_sim.report.figures.style import (
    GRID_COLOUR,
    SERIES_COLOURS,
    TEXT_COLOUR,
    figure,
    log_axis,
    variant_colour,
)
from ladder_sim.validation.compare import validate
from ladder_sim.validation.dataset import read_dataset
from tests.support.beside import hidden

if TYPE_CHECKING:
    import plotly.graph_objects as go

TRAINING = DOCS.parent / "tests" / "data" / "training"
# narrow enough that a phone shrinks the letters little
WIDTH_PX = 480
_FONT_PX = 13
_NUMBERS = re.compile(r"<metadata>(.*?)</metadata>", re.DOTALL)


def timeline() -> "go.Figure":
    """Two layers of a decode step, standard and ladder, under gpt-fast."""
    scenario = Scenario(model="70b", tp=8)
    drawn = timeline_figure(scenario, predict(scenario, ["standard", "ladder"]), compact=True)
    return drawn.update_layout(height=330)


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def _line(name: str, x: Iterable[float], y: Iterable[float], colour: str, **style: Any) -> dict[str, Any]:
    line = {"color": colour, "width": 2, **style}
    return {"name": name, "x": [*map(float, x)], "y": [*map(float, y)], "mode": "lines", "line": line}


def all_reduces() -> "go.Figure":
    """All-reduces on eight H100s by size: algorithms alone, and what vLLM takes."""
    sizes = 2.0 ** np.arange(12, 29)

    def microseconds(name: str) -> Any:
        scenario = Scenario(model="70b", tp=8, stack="vllm", allreduce=name)
        return 1e6 * collectives_s(scenario, "all_reduce", sizes)

    traces = [
        _line(name, sizes / 1024, microseconds(name), colour)
        for name, colour in zip(("nccl", "one-shot", "two-shot", "multimem"), SERIES_COLOURS, strict=False)
    ]
    own = microseconds("auto")
    traces.append(_line("vLLM, as measured", sizes / 1024, own, TEXT_COLOUR, dash="dot", width=3))
    ticks = {4: "4 KiB", 16: "16 KiB", 256: "256 KiB", 4096: "4 MiB", 65536: "64 MiB"}
    layout = {
        "height": 400,
        "xaxis": _axis("message", type="log", tickvals=list(ticks), ticktext=list(ticks.values())),
        "yaxis": _axis("microseconds", type="log", tickvals=[5, 10, 20, 50, 100, 200, 500, 1000]),
    }
    return figure("", data=traces, layout=layout)


def contention() -> "go.Figure":
    """All-reduces that ladder hides in decode steps of 405B by their steps through memory: measured, and simulated."""
    traces: list[dict[str, Any]] = []
    for name, batch, behind, colour in (
        ("behind the MLP, batch 4 (cuBLAS GEMMs)", 4, "mlp", SERIES_COLOURS[0]),
        ("behind the MLP, batch 1 (compiled GEMVs)", 1, "mlp", SERIES_COLOURS[1]),
        ("behind attention, batch 4", 4, "attention", SERIES_COLOURS[2]),
    ):
        rows = hidden("405b-tp16", batch, behind)
        numbers_of_steps = [row.exchanges for row in rows]
        traces.append(_line(name, numbers_of_steps, [1e6 * row.predicted_s for row in rows], colour, width=2.5))
        points = {"x": numbers_of_steps, "y": [1e6 * row.measured_s for row in rows], "mode": "markers"}
        traces.append({**points, "marker": {"color": colour, "size": 10}, "showlegend": False})
    rows = hidden("405b-tp16", 4, "mlp")
    alone = [1e6 * row.alone_s for row in rows]
    traces.append(_line("alone, batch 4", [row.exchanges for row in rows], alone, TEXT_COLOUR, dash="dash"))
    layout = {
        "height": 420,
        "xaxis": _axis("steps of the all-reduce through memory", tickvals=[4, 8, 16, 32, 48]),
        "yaxis": _axis("microseconds", rangemode="tozero"),
    }
    return figure("", data=traces, layout=layout)


def serving() -> "go.Figure":
    """Time per token by requests in flight, and the part of it that is a decode step."""
    flying = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    answers = [
        predict(Scenario(model="70b", tp=8, stack="vllm", concurrency=count), ["standard", "ladder"])
        for count in flying
    ]
    traces = []
    for variant in ("standard", "ladder"):
        served, colour = [answer[variant].request.served for answer in answers], variant_colour(variant)
        steps, tokens = ([1e3 * getattr(each, name) for each in served] for name in ("decode_s", "tpot_s"))
        traces.append(_line(f"{variant}: decode step", flying, steps, colour, dash="dot"))
        traces.append(_line(f"{variant}: TPOT", flying, tokens, colour, width=2.5))
    layout = {
        "height": 400,
        "xaxis": _axis("requests in flight", type="log", tickvals=flying),
        "yaxis": _axis("milliseconds", rangemode="tozero"),
    }
    return figure("", data=traces, layout=layout)


# what moves away from runs that predictions were compared with
_AWAY: Mapping[str, Mapping[str, Any]] = {
    "8 x H100, gpt-fast": {},
    "batch 128": {"batch": 128},
    "prompts of 8192": {"prompt": 8192},
    "405B in fp8": {"model": "405b", "dtype": "fp8"},
    "8 x H200": {"cluster": "h200-sxm"},
    "vLLM": {"stack": "vllm"},
    "vLLM, 64 in flight": {"stack": "vllm", "concurrency": 64},
    "405B on two nodes": {"model": "405b", "nodes": 2, "tp": 16},
    "vLLM, 8 x L40S, fp8": {"stack": "vllm", "cluster": "l40s-pcie", "dtype": "fp8"},
}


def intervals() -> "go.Figure":
    """Ladder's speedup with its interval, and what of each scenario no run had."""
    labels, speedups = [], []
    for label, changes in _AWAY.items():
        prediction = predict(Scenario(**{"model": "70b", "tp": 8, **changes}), ["standard", "ladder"])["ladder"]
        unlike = [part.replace("_", " ") for part, checked in prediction.confidence.validated.items() if not checked]
        labels.append(f"{label}<br><span style='font-size:11px'>{', '.join(unlike) or 'all compared'}</span>")
        speedups.append(prediction.speedup)
    colour = variant_colour("ladder")
    points = {
        "x": [each.value for each in speedups],
        "y": labels,
        "mode": "markers",
        "marker": {"color": colour, "size": 10},
        "error_x": {
            "type": "data",
            "array": [each.high - each.value for each in speedups],
            "arrayminus": [each.value - each.low for each in speedups],
            "color": colour,
            "thickness": 2,
        },
    }
    layout = {
        "height": 90 + 46 * len(labels),
        "xaxis": _axis("speedup of ladder, 90 % interval"),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    return figure("", data=[points], layout=layout)


def static_runs() -> "go.Figure":
    """Speedups of static batches, predicted over measured."""
    import plotly.graph_objects as go

    data = read_dataset()
    parity = list(error_figure(validate(data, LEVEL)).data)
    for trace in parity:
        if trace.mode == "markers":
            # seen on white and on black
            trace.update(
                error_y={"color": "#8C8C8C", "thickness": 1},
                marker={"line": {"width": 0 if trace.marker.symbol == "circle" else 1.5}},
            )
    axes = {"xaxis": _axis("measured speedup"), "yaxis": _axis("predicted speedup")}
    return figure("", data=go.Figure(parity).to_plotly_json()["data"], layout={"height": 520, **axes})


def measured_servings() -> "go.Figure":
    """Signed errors of servings' time per token within the half-widths of their intervals."""
    rows = [(models, row) for models in MODELS for row in servings(models, "engine")]
    labels = [
        row["value"].replace(", ", " ").replace(" on ", ", ").removesuffix("-sxm") + ", MoE" * (models == "experts")
        for models, row in rows
    ]
    widths = np.array([100 * float(row["half_width"]) for _, row in rows])
    engines = list(ENGINES)
    colours = [SERIES_COLOURS[engines.index(row["value"].partition(",")[0])] for _, row in rows]
    bars = {"type": "bar", "orientation": "h", "y": labels, "base": (-widths).tolist(), "x": (2 * widths).tolist()}
    biases = {"y": labels, "x": [100 * float(row["tpot_bias"]) for _, row in rows], "mode": "markers"}
    zero = {"zeroline": True, "zerolinecolor": TEXT_COLOUR}
    layout = {
        "height": 100 + 30 * len(rows),
        "showlegend": False,
        "bargap": 0.3,
        "xaxis": _axis("error of the time per token, %", dtick=20, **zero),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    data = [{**bars, "marker": {"color": GRID_COLOUR}}, {**biases, "marker": {"color": colours, "size": 10}}]
    return figure("", data=data, layout=layout)


def recovery() -> "go.Figure":
    """Held-out perplexity of a model while it is adapted, a line for each run, and that of the model as it was."""
    held = json.loads((TRAINING / "recovery.json").read_text("utf-8"))
    layers = sorted({int(name.split("-")[1]) for name in held["runs"]})
    traces: list[dict[str, Any]] = []
    for name, run in held["runs"].items():
        _, count, objective = name.split("-", 2)
        learned, dash = {"distill": ("self-distillation", "solid"), "next-token": ("on the text", "dot")}[objective]
        traces.append(
            {
                "name": f"last {count}, {learned}" if count != "0" else f"standard, {learned}",
                "x": [point["tokens"] for point in run["curve"]],
                "y": [math.exp(point["held_out"]) for point in run["curve"]],
                "line": {"color": SERIES_COLOURS[layers.index(int(count))], "dash": dash},
            }
        )
    before = math.exp(held["untrained"]["standard"]["held_out"])
    ends = (0, max(tokens for trace in traces for tokens in trace["x"]))
    traces.append(_line("before it was rewired", ends, (before, before), TEXT_COLOUR, dash="dash"))
    values = [value for trace in traces for value in trace["y"]]
    layout = {"height": 520, "xaxis": _axis("tokens"), "yaxis": log_axis("perplexity", values)}
    return figure(
        "SmolLM2-135M with its last layers as ladder",
        "held-out perplexity while it is adapted",
        data=traces,
        layout=layout,
    )


FIGURES: Mapping[str, Callable[[], "go.Figure"]] = {
    "how/model": timeline,
    "how/collectives": all_reduces,
    "how/contention": contention,
    "how/serving": serving,
    "how/intervals": intervals,
    "evidence-runs": static_runs,
    "evidence-servings": measured_servings,
    "recovery": recovery,
}
# commands of a page, the last of which draws the figure
COMMANDS: Mapping[str, Sequence[str]] = {
    "versus-map": ("ladder-sim versus --model 70b --stack vllm --concurrency 64 --map versus-map.svg",),
}


def file_of(name: str, scheme: str = "") -> Path:
    """Where a figure lies; one that commands draw has no scheme."""
    return DOCS / (f"{name}-{scheme}.svg" if scheme else f"{name}.svg")


def drawn_by(commands: Sequence[str]) -> "go.Figure":
    """Return the figure that commands draw, without a browser."""
    with (
        TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        patch.object(style, "save_figure") as saved,
    ):
        for command in commands:
            if ladder_sim(shlex.split(command)[1:]):
                raise RuntimeError(f"{command} failed")
    drawn, _ = saved.call_args.args
    return drawn


def numbers(drawn: "go.Figure") -> list[list[float]]:
    """Return what a figure draws: the numbers of each trace, to four digits, and labels that are numbers."""
    rows = []
    for trace in drawn.data:
        values = [trace[key] for key in ("base", "x", "y", "z", "text") if key in trace and trace[key] is not None]
        for bars in ("error_x", "error_y"):
            if bars in trace:
                values += [trace[bars][end] for end in ("array", "arrayminus") if trace[bars][end] is not None]
        flat = [each for column in values for each in np.ravel(np.asarray(column, dtype=object))]
        rows.append([float(f"{number:.4g}") for each in flat if math.isfinite(number := _number(each))])
    return rows


def _number(value: object) -> float:
    """NaN of what is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def drawn_numbers(file: Path) -> list[list[float]]:
    """Return the numbers that a file draws."""
    (text,) = _NUMBERS.findall(file.read_text("utf-8"))
    rows: list[list[float]] = json.loads(text)
    return rows


def save(drawn: "go.Figure", file: Path) -> None:
    """Write a figure with the numbers that it draws."""
    style.save_figure(drawn, file)
    svg = file.read_text("utf-8").removesuffix("</svg>")
    file.write_text(f"{svg}<metadata>{json.dumps(numbers(drawn))}</metadata></svg>\n", "utf-8")


def write(name: str) -> None:
    """Draw a figure, in both schemes unless commands draw it."""
    import plotly.graph_objects as go

    if name in COMMANDS:
        save(drawn_by(COMMANDS[name]), file_of(name))
        return
    drawn = FIGURES[name]()
    for scheme in SCHEMES:
        page = on_page(drawn.to_plotly_json())
        picture = go.Figure(_recoloured(page) if scheme == "dark" else page)
        picture.update_layout(width=WIDTH_PX, height=drawn.layout.height, margin={"l": 12, "r": 16, "t": 12, "b": 12})
        picture.update_layout(font={"size": _FONT_PX}, legend={"font": {"size": _FONT_PX}})
        picture.for_each_xaxis(lambda axis: axis.update(tickfont={"size": _FONT_PX}))
        picture.for_each_yaxis(lambda axis: axis.update(tickfont={"size": _FONT_PX}))
        save(picture, file_of(name, scheme))


def _recoloured(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _recoloured(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_recoloured(item) for item in value]
    return DARK.get(value, value) if isinstance(value, str) else value


def main(names: Sequence[str]) -> None:
    for name in names or (*FIGURES, *COMMANDS):
        write(name)


if __name__ == "__main__":
    main(sys.argv[1:])
