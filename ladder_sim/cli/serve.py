"""`ladder-sim serve` and `capacity`: what becomes of a load, and what it needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.knobs import knobs_of
from ladder_sim.cli.output import PANEL, Output
from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import ASKED, LOAD
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.values import whole

if TYPE_CHECKING:
    from ladder_sim.confidence import Confidence
    from ladder_sim.display.notes import Notes
    from ladder_sim.serve import MeasuredSteps, Trace, Traffic
    from ladder_sim.specs.plan import Plan

# tokens of a prompt and of an answer by default
PROMPT, GEN = "1024", "256"

Variants = Annotated[
    list[str] | None,
    typer.Option(help="As in predict; standard and ladder by default.", rich_help_panel=ASKED),
]
_SLO = "Latency promise, e.g. ttft_p95=500ms,tpot_p95=30ms."


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests that arrive, as typed."""

    prompt: Annotated[
        str, typer.Option(help="Tokens of prompts: 1024, uniform:512:1536 or lognormal:1024:0.5.", rich_help_panel=LOAD)
    ] = PROMPT
    gen: Annotated[str, typer.Option(help="Tokens of answers, likewise.", rich_help_panel=LOAD)] = GEN
    rate: Annotated[float, typer.Option(help="Requests per second.", rich_help_panel=LOAD)] = 0.0
    concurrency: Annotated[
        int,
        typer.Option(
            help="Requests in flight at all times, instead of a rate; with --rate, the most at a time.",
            rich_help_panel=LOAD,
        ),
    ] = 0
    requests: Annotated[
        int | None, typer.Option(help="How many requests: 1000 by default, or all of a trace.", rich_help_panel=LOAD)
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds to simulate, for intervals: 5 by default, in capacity 3.", rich_help_panel=LOAD),
    ] = None
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Step times of a running vLLM, from `calibrate fit-steps`, instead of simulated ones.",
            rich_help_panel=LOAD,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Requests):
    """A scenario, and requests that arrive."""

    asked: flags.Asked

    @classmethod
    def of(cls, context: typer.Context, *without: str, ranged: bool = False) -> Self:
        """Read the flags of a command."""
        arrive = "requests arrive as --prompt, --gen, --rate, --concurrency or --trace say"
        asked = flags.Asked.of(context, *without, ranged=ranged, requests=arrive)
        own = {each.name: context.params[each.name] for each in fields(cls) if each.name != "asked"}
        return cls(asked=asked, **own)

    @property
    def knobs(self) -> Mapping[str, Any]:
        """Values of the parameters that have no flag, by name."""
        return self.asked.knobs

    def scenario(self) -> Scenario:
        """Resolve names and check everything, with a request on each replica."""
        return self._scenario(**self.asked.arguments)

    def _scenario(self, **arguments: Any) -> Scenario:
        replicas = arguments.get("dp", 1) * arguments.get("attention_dp", 1)
        return Scenario(**arguments, concurrency=replicas, overrides=self.asked.settings)

    def prefill(self) -> Scenario | None:
        """The scenario of replicas that run prompts only, if there are any."""
        replicas, tp = self.knobs["prefill_replicas"], self.knobs["prefill_tp"]
        if not replicas:
            if tp is not None:
                raise UsageError(
                    f"prefill_tp {tp} without prefill_replicas: no replica runs prompts only",
                    hint="say how many, e.g. --set prefill_replicas=2",
                )
            return None
        self.check_prefill("prefill_replicas")
        whole(replicas, "prefill_replicas", 1, 10_000)
        tp = self.scenario().plan.tp if tp is None else tp
        return self._scenario(**{**self.asked.arguments, "dp": replicas, "tp": tp})

    def check_prefill(self, name: str) -> None:
        """Refuse replicas that run prompts only where steps were measured."""
        if self.steps is not None:
            raise UsageError(f"{name} with --steps: only a whole server was measured", hint="leave out one of them")

    def trace(self, path: Path) -> "Trace":
        """Requests of a file."""
        from ladder_sim.serve import Trace

        # acceptance of drafted tokens is drawn all the same
        drawn = ["burstiness", "prefix", *([] if self.knobs["speculate"] else ["seed"])]
        typed = {
            "--rate": (self.rate, 0.0),
            "--concurrency": (self.concurrency, 0),
            "--prompt": (self.prompt, PROMPT),
            "--gen": (self.gen, GEN),
            **{name: (self.knobs[name], knobs_of("serve")[name].default) for name in drawn},
        }
        for name, (value, default) in typed.items():
            if value != default:
                raise UsageError(
                    f"{name} {value} with --trace: a trace has its own times and lengths, and nothing is drawn",
                    hint="leave out one of them; speed and --requests say how fast and how much of a trace is played",
                )
        speed = 1.0 if self.knobs["speed"] is None else self.knobs["speed"]
        if not 1e-6 <= speed <= 1e6:
            raise UsageError(f"speed {speed:g}: must be 1e-6 to 1e6", hint="2 plays a trace twice as fast")
        return Trace(path=path, requests=self.requests, speed=speed)

    def traffic(self) -> "Traffic":
        """Requests drawn at random."""
        from ladder_sim.serve import Lengths, Traffic

        burstiness = self.knobs["burstiness"]
        if not self.rate and burstiness != 1.0:
            raise UsageError(
                f"burstiness {burstiness:g} without --rate: requests have no times of their own",
                hint="give --rate, or leave it out",
            )
        return Traffic(
            prompt=Lengths.parse(self.prompt),
            gen=Lengths.parse(self.gen),
            rate=self.rate,
            concurrency=self.concurrency,
            requests=1000 if self.requests is None else self.requests,
            burstiness=burstiness,
            prefix=self.knobs["prefix"],
            seed=self.knobs["seed"],
        )

    def how(self) -> dict[str, Any]:
        """Fields of a `Service`."""
        from ladder_sim.serve import MeasuredSteps
        from ladder_sim.serve.engine.speculation import Speculation

        changed: dict[str, Any] = {}
        if self.knobs["speculate"] is not None:
            changed["speculation"] = Speculation.parse(self.knobs["speculate"], self.knobs["seed"])
        return {
            "router": self.knobs["router"],
            "profile": self.asked.profile,
            "changed": changed,
            "steps": None if self.steps is None else MeasuredSteps.read(self.steps),
        }


def serve(
    context: typer.Context,
    variant: Variants = None,
    price: flags.Price = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="File of requests instead of a rate: Mooncake, Azure LLM, BurstGPT, AIPerf or vllm bench serve.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    slo: Annotated[str | None, typer.Option(help=_SLO, rich_help_panel=LOAD)] = None,
) -> None:
    """Simulate requests that arrive under load, one by one, and show their times for each variant."""
    from ladder_sim.report.documents.serve import serve_document
    from ladder_sim.report.figures.serve import load_figure
    from ladder_sim.report.tables.serve import load_label, load_subtitle, serve_report
    from ladder_sim.serve import Promise, estimate
    from ladder_sim.serve.load import DEFAULT_VARIANTS
    from ladder_sim.sweeps.price import check_price
    from ladder_sim.system.files import check_folder
    from ladder_sim.system.progress import Progress
    from ladder_sim.traces.serving import write_steps

    load = Load.of(context)
    output = Output.of(context, load.knobs["plot"])
    scenario = load.scenario()
    how = {"prefill": load.prefill(), "engine": load.knobs["engine"], **load.how()}
    perfetto = load.knobs["perfetto"] and Path(load.knobs["perfetto"])
    check_folder("perfetto", perfetto)
    usd_per_gpu_hour = None if price is None else check_price(price)
    promise = Promise.parse(slo) if slo is not None else None
    speed = load.knobs["speed"]
    if speed is not None and trace is None:
        raise UsageError(
            f"speed {speed:g} without --trace: nothing is played", hint="name a file of requests, or change --rate"
        )
    drawn = load.traffic() if trace is None else load.trace(trace)
    with Progress(1, "requests") as progress:
        estimates = estimate(
            scenario,
            drawn,
            load.asked.variants or DEFAULT_VARIANTS,
            seeds=load.seeds,
            concurrency=load.concurrency,
            promise=promise,
            record=output.plot is not None or perfetto is not None,
            watch=progress,
            **how,
        )
    if perfetto is not None:
        write_steps(perfetto, {name: each.outcome for name, each in estimates.variants.items()})
    output.give_parts(
        lambda: serve_document(scenario, drawn, how, estimates, usd_per_gpu_hour),
        lambda: serve_report(load_label(scenario, drawn, how), estimates, usd_per_gpu_hour),
        lambda: load_figure(load_subtitle(scenario, drawn, how), estimates),
        _notes(scenario, {"": estimates.confidence}, how["steps"], estimates.variants, estimates.cautions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad(Load):
    """The same for a search over plans of a replica: each degree takes several values, by default all."""

    searched: ClassVar[tuple[str, ...]] = ("tp", "pp", "ep", "attention_dp", "sp")

    def scenario(self) -> Scenario:
        """Resolve names and check everything but the plan."""
        fixed = {name: value for name, value in self.asked.arguments.items() if name not in self.searched}
        base = Scenario(**fixed, tp=1, concurrency=1, overrides=self.asked.settings)
        gpus = base.nodes * base.cluster.gpus_per_node
        return base.having(workload=replace(base.workload, concurrency=gpus))

    def plans(self, scenario: Scenario) -> "Sequence[Plan]":
        """Those of one replica that are legal, within what was typed."""
        from ladder_sim.analysis.plans import legal_plans
        from ladder_sim.sweeps.axes import axis

        typed = self.asked.arguments
        given = {name: axis(name, typed[name]).values for name in self.searched if name in typed}
        if self.steps is not None:
            # those of a running engine are of one plan
            given = {"tp": (scenario.cluster.gpus_per_node,), "pp": (1,), "ep": (1,), "attention_dp": (1,), **given}
        return legal_plans(scenario, scenario.workload.in_flight, {**given, "dp": [1]}).legal

    def prefill_tps(self) -> Sequence[int]:
        """Degrees of tensor parallelism to try for replicas that run prompts only."""
        from ladder_sim.sweeps.axes import axis

        if self.knobs["prefill_tp"] is None:
            return ()
        self.check_prefill("prefill_tp")
        return axis("tp", self.knobs["prefill_tp"]).values


def capacity(
    context: typer.Context,
    slo: Annotated[str, typer.Option(help=_SLO, rich_help_panel=LOAD)],
    variant: Variants = None,
    price: flags.Price = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write to a file as it runs, .json, .csv or .txt, to go on from.", rich_help_panel=PANEL),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a search with --save was killed.", rich_help_panel=PANEL)
    ] = False,
) -> None:
    """Find the fewest GPUs that keep a promise at a rate, over plans, and the rate at which one replica breaks it."""
    from ladder_sim.report.documents.serve import capacity_document
    from ladder_sim.report.figures.serve import capacity_figure
    from ladder_sim.report.tables.serve import capacity_label, capacity_report
    from ladder_sim.serve import Promise, smallest_fleets
    from ladder_sim.serve.load import DEFAULT_VARIANTS
    from ladder_sim.sweeps.price import check_price
    from ladder_sim.system.progress import Progress

    load = FleetLoad.of(context, "dp", ranged=True)
    output = Output.of(context, load.knobs["plot"])
    if resume and save is None:
        raise UsageError("--resume without --save", hint="name the file whose search was killed")
    scenario, traffic, promise = load.scenario(), load.traffic(), Promise.parse(slo)
    prefill_tps, how = load.prefill_tps(), load.how()
    usd_per_gpu_hour = None if price is None else check_price(price)
    with Progress(1, "points") as progress:
        fleets = smallest_fleets(
            scenario,
            traffic,
            promise,
            load.asked.variants or DEFAULT_VARIANTS,
            plans=load.plans(scenario),
            prefill_tps=prefill_tps,
            seeds=load.seeds,
            path=save,
            resume=resume,
            curves=output.plot is not None,
            watch=progress,
            **how,
        )
    confidences = {name: each.confidence for name, each in fleets.variants.items() if each.confidence}
    output.give_parts(
        lambda: capacity_document(scenario, how, fleets, usd_per_gpu_hour),
        lambda: capacity_report(capacity_label(scenario, how, fleets), fleets, usd_per_gpu_hour),
        lambda: capacity_figure(f"{scenario.model.name}, {scenario.cluster.name}, {scenario.stack.name}", fleets),
        _notes(scenario, confidences, how["steps"], fleets.variants, fleets.cautions),
    )


def _notes(
    scenario: Scenario,
    confidences: "Mapping[str, Confidence]",
    steps: "MeasuredSteps | None",
    variants: Iterable[str],
    about: tuple[str, ...],
) -> "Notes":
    """The end of an answer; what predictions were compared with says nothing of a running engine's own steps."""
    from ladder_sim.display.notes import Notes
    from ladder_sim.serve.confidence import steps_note

    if steps is None:
        return Notes(confidences=confidences, about=about)
    rewired = [name for name in variants if name != "standard"]
    confidence = next(iter(confidences.values()), None)
    of_rewired = {", ".join(rewired): confidence} if rewired and confidence else {}
    return Notes(confidences=of_rewired, about=(steps_note(steps, scenario, rewired), *about))
