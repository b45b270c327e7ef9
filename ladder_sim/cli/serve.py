"""`ladder-sim serve` and `capacity`: what becomes of a load, and what it needs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.flags import in_asked, in_load

# tokens of a prompt and of an answer by default
PROMPT, GEN = "1024", "256"

Variants = Annotated[list[str] | None, in_asked(help="As in predict; standard and ladder by default.")]
_SLO = "Bounds on times, e.g. ttft_p95=500ms,tpot_p95=30ms; repeatable."


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests that arrive, as typed."""

    prompt: Annotated[str, in_load(help="Tokens of prompts: 1024, uniform:512:1536 or lognormal:MEDIAN:SIGMA.")] = (
        PROMPT
    )
    gen: Annotated[str, in_load(help="Tokens of answers, likewise.")] = GEN
    rate: Annotated[float, in_load(help="Requests per second.", show_default=False)] = 0.0
    concurrency: Annotated[
        int,
        in_load(
            help="Requests in flight at all times, instead of a rate; with --rate, the most at a time.",
            show_default=False,
        ),
    ] = 0
    requests: Annotated[int | None, in_load(help="How many requests: 1000 by default, or all of a trace.")] = None
    seeds: Annotated[int | None, in_load(help="Seeds to simulate, for intervals: 5 by default, in capacity 3.")] = None
    steps: Annotated[
        Path | None,
        in_load(help="Step times of a running vLLM, from `calibrate fit-steps`, instead of simulated ones."),
    ] = None


def _asked(context: typer.Context, *without: str, ranged: bool = False) -> flags.Asked:
    """Read the flags of a scenario, to which requests arrive one by one."""
    arrive = "requests arrive as --prompt, --gen, --rate, --concurrency or --trace say"
    return flags.Asked.of(context, *without, ranged=ranged, requests=arrive)


def _load(context: typer.Context, asked: flags.Asked) -> dict[str, Any]:
    """Return the keywords of `ladder_sim.serve` and `capacity`."""
    knobs = ("burstiness", "prefix", "seed", "router", "speculate", "prefill_tp")
    requests = flags.of_context(Requests, context)
    lengths = {name: int(text) for name in ("prompt", "gen") if (text := getattr(requests, name)).isdecimal()}
    in_flight = (
        {"concurrency": requests.concurrency} if isinstance(requests.concurrency, int) and requests.concurrency else {}
    )
    return {
        **asked.arguments,
        **asdict(requests),
        **asked.how(*knobs, load={**lengths, **in_flight}),
        "overrides": asked.settings or None,
        **({"variants": asked.variants} if asked.variants else {}),
    }


def serve(
    context: typer.Context,
    variant: Variants = None,
    price: flags.Price = None,
    trace: Annotated[
        Path | None,
        in_load(help="File of requests instead of a rate: Mooncake, Azure LLM, BurstGPT, AIPerf or vllm bench serve."),
    ] = None,
    slo: Annotated[list[str] | None, in_load(help=_SLO)] = None,
) -> None:
    """Simulate requests that arrive under load, one by one, and show their times for each variant."""
    from ladder_sim.serving.serve import serve as simulate
    from ladder_sim.system.files import check_folder
    from ladder_sim.system.progress import Progress
    from ladder_sim.traces.perfetto import write_steps

    asked = _asked(context)
    perfetto = asked.knobs["perfetto"] and Path(asked.knobs["perfetto"])
    check_folder("perfetto", perfetto)
    with Progress(1, "requests") as progress:
        served = simulate(
            **_load(context, asked),
            trace=trace,
            slo=",".join(slo) if slo else None,
            usd_per_gpu_hour=price,
            record=asked.output.plot is not None or perfetto is not None,
            watch=progress,
            **{name: asked.knobs[name] for name in ("speed", "engine", "prefill_replicas")},
        )
    if perfetto is not None:
        write_steps(perfetto, {name: each.outcome for name, each in served.items()})
    asked.output.give(served)


def capacity(
    context: typer.Context,
    slo: Annotated[list[str], in_load(help=_SLO)],
    variant: Variants = None,
    price: flags.Price = None,
) -> None:
    """Find the fewest GPUs that meet an SLO at a rate, over plans, and the rate at which one replica breaks it."""
    from ladder_sim.serving.capacity import capacity as search
    from ladder_sim.system.progress import Progress

    asked = _asked(context, "dp", ranged=True)
    with Progress(1, "points") as progress:
        need = search(
            **_load(context, asked),
            slo=",".join(slo),
            usd_per_gpu_hour=price,
            curves=asked.output.plot is not None,
            watch=progress,
            say=progress.say,
        )
    asked.output.give(need)
