"""The losses of a training run."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from ladder_sim.report.figures.style import SERIES_COLOURS, figure
from ladder_sim.system.files import read_text

if TYPE_CHECKING:
    import plotly.graph_objects as go


def loss_figure(file: Path) -> "go.Figure":
    """What was minimised at each step, and of held-out text the loss and the divergence from a teacher, over tokens."""
    import plotly.graph_objects as go

    rows = list(csv.DictReader(read_text(file, what="the losses of a training run").splitlines()))
    drawn = figure("Training", str(file.parent))
    drawn.update_layout(xaxis_title="tokens", yaxis_title="nats per token")
    for column, name, mode, colour in (
        ("loss", "minimised", "lines", SERIES_COLOURS[4]),
        ("held_out", "held-out text", "lines+markers", SERIES_COLOURS[0]),
        ("divergence", "held-out text, from the teacher", "lines+markers", SERIES_COLOURS[1]),
    ):
        own = [row for row in rows if row.get(column)]
        if not own:
            continue
        x, y = ([float(row[key]) for row in own] for key in ("tokens", column))
        drawn.add_trace(go.Scatter(x=x, y=y, mode=mode, name=name, line={"color": colour}))
    return drawn
