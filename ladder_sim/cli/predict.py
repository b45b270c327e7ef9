"""`ladder-sim predict`: latency, throughput and speedup of every variant."""

from pathlib import Path

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.output import Output, check_plot, draw


def predict(context: typer.Context) -> None:
    """Predict latency, throughput and speedup of residual wirings, for a static batch or requests in flight."""
    # imported here: `--help` and `list` need no simulator
    from ladder_sim.prediction import predict as simulate

    asked = flags.Asked.of(context)
    output = Output.of(context, asked.knobs["plot"])
    timeline = asked.knobs["timeline"] and Path(asked.knobs["timeline"])
    check_plot(timeline)
    how = asked.how("engine", "jitter", "seed", "ignore_memory")
    predictions = simulate(asked.scenario(), asked.variants or None, **how)
    draw(lambda: predictions.plot("timeline"), timeline)
    output.give(predictions)
