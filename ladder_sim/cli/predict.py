"""`ladder-sim predict`: latency, throughput and speedup of every variant."""

from pathlib import Path
from typing import Annotated

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.output import PANEL, Csv, Json, Output, check_plot, draw
from ladder_sim.errors import UsageError


def predict(
    context: typer.Context,
    model: flags.Model = None,
    cluster: flags.Cluster = None,
    nodes: flags.Nodes = None,
    gpus_per_node: flags.GpusPerNode = None,
    stack: flags.Stack = None,
    dtype: flags.DType = None,
    variant: flags.Variant = None,
    technique: flags.Technique = None,
    allreduce: flags.AllReduce = None,
    no_p2p: flags.NoP2p = False,
    profile: flags.Profile = None,
    set_: flags.Set = None,
    tp: flags.Tp = None,
    pp: flags.Pp = None,
    ep: flags.Ep = None,
    attention_dp: flags.AttentionDp = None,
    dp: flags.Dp = None,
    batch: flags.Batch = None,
    concurrency: flags.Concurrency = None,
    prompt: flags.Prompt = None,
    gen: flags.Gen = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every op, its source and the critical path.", rich_help_panel=PANEL)
    ] = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Predict latency, throughput and speedup of residual wirings, for a static batch or requests in flight."""
    # imported here: `--help` and `list` need no simulator
    from rich.console import Group

    from ladder_sim.prediction import predict as simulate
    from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
    from ladder_sim.report.tables.explanation import explanation

    asked = flags.Asked.of(context)
    if explain and (json or csv):
        raise UsageError("--explain adds tables of text: --json and --csv have no place for them", hint="leave one out")
    output = Output.of(json=json, csv=csv, plot=asked.knobs["plot"])
    timeline = asked.knobs["timeline"] and Path(asked.knobs["timeline"])
    check_plot(timeline)
    scenario = asked.scenario()
    how = asked.how("engine", "jitter", "seed", "ignore_memory")
    predictions = simulate(scenario, flags.split_names(variant) or None, **how)
    draw(lambda: timeline_figure(scenario, predictions, "decode"), timeline)
    output.give(
        predictions.document,
        lambda: Group(predictions.report(), explanation(predictions.values())) if explain else predictions.report(),
        lambda: breakdown_figure(scenario, predictions),
        predictions.notes,
    )
