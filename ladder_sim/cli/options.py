"""Flags that mean the same in every command, and the scenario they describe."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import settings

ENGINES = ("fast", "des")
_WHERE, _WORK, _HOW = "Model and cluster", "Workload", "Stack and costs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFlags:
    """Scenario flags as typed; a field is a flag of every command that takes `ScenarioFlags`."""

    model: Annotated[str, typer.Option(help="Alias, catalog id or path of a config.json.", rich_help_panel=_WHERE)] = (
        "70b"
    )
    cluster: Annotated[str, typer.Option(help="Catalog id or path of a cluster .toml.", rich_help_panel=_WHERE)] = (
        "h100-sxm"
    )
    nodes: Annotated[int, typer.Option(help="Nodes of the tensor-parallel group.", rich_help_panel=_WHERE)] = 1
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of one node.", rich_help_panel=_WHERE)] = None
    tp: Annotated[
        int | None, typer.Option(help="Tensor-parallel degree; default: every GPU.", rich_help_panel=_WHERE)
    ] = None
    batch: Annotated[int, typer.Option(help="Requests served together.", rich_help_panel=_WORK)] = 1
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.", rich_help_panel=_WORK)] = 1024
    gen: Annotated[int, typer.Option(help="New tokens of each request.", rich_help_panel=_WORK)] = 512
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp8.", rich_help_panel=_WORK)] = "bf16"
    stack: Annotated[str, typer.Option(help="gpt-fast, vllm, trtllm or a stack .toml.", rich_help_panel=_HOW)] = (
        "gpt-fast"
    )
    allreduce: Annotated[
        str | None, typer.Option(help="nccl, one-shot, two-shot, nvls or auto.", rich_help_panel=_HOW)
    ] = None
    no_p2p: Annotated[
        bool, typer.Option("--no-p2p", help="GPUs reach each other through host memory.", rich_help_panel=_HOW)
    ] = False
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for any figure, e.g. inter.bandwidth=100Gb/s.", rich_help_panel=_HOW),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(help="Measured profile: name or file; 'none' for the datasheet.", rich_help_panel=_HOW),
    ] = None
    engine: Annotated[
        str, typer.Option(help="fast (vectorised) or des (event by event on simpy).", rich_help_panel=_HOW)
    ] = "fast"
    jitter: Annotated[
        str,
        typer.Option(
            help="Random spread of kernel times, e.g. 0.05, or 'measured': simulates every rank.", rich_help_panel=_HOW
        ),
    ] = "0"
    seed: Annotated[int, typer.Option(help="Of the jitter's random numbers.", rich_help_panel=_HOW)] = 0
    ignore_memory: Annotated[
        bool,
        typer.Option("--ignore-memory", help="Predict even if the model does not fit.", rich_help_panel=_HOW),
    ] = False

    def scenario(self) -> Scenario:
        """Resolve names and check everything."""
        return Scenario.of(
            model=self.model,
            cluster=self.cluster,
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            tp=self.tp,
            batch=self.batch,
            prompt=self.prompt,
            gen=self.gen,
            dtype=self.dtype,
            stack=self.stack,
            allreduce=self.allreduce,
            p2p=not self.no_p2p,
            overrides=settings(self.set_ or []),
        )

    def how(self) -> dict[str, Any]:
        """Arguments of `ladder_sim.prediction.predict` besides scenario and variants."""
        if self.engine not in ENGINES:
            raise UnknownNameError("engine", self.engine, ENGINES)
        return {
            "profile": self.profile,
            "engine": self.engine,
            "jitter": spread(self.jitter),
            "seed": self.seed,
            "ignore_memory": self.ignore_memory,
        }


def spread(text: str) -> float | str:
    """The value of ``--jitter``.

    Examples
    --------
    >>> spread("0.05"), spread("measured")
    (0.05, 'measured')
    """
    if text == "measured":
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"--jitter '{text}' is no number", hint="0.05 spreads kernels by 5 %; 'measured' is the profile's"
        ) from None


def with_scenario_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter ``flags`` by the scenario flags themselves, so that typer sees each one."""
    names = [field.name for field in fields(ScenarioFlags)]
    own = [item for item in inspect.signature(command).parameters.values() if item.name != "flags"]
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=_annotation(field.name)
        )
        for field in fields(ScenarioFlags)
    ]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        flags = ScenarioFlags(**{name: arguments.pop(name) for name in names})
        command(flags=flags, **arguments)

    ordered = [*shared, *(item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own)]
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in ordered}
    return run


def _annotation(name: str) -> Any:
    return ScenarioFlags.__annotations__[name]


_SIMULATOR = ("engine", "jitter", "seed")


_NAMED = ("model", "cluster", "nodes", "gpus_per_node", "tp", "batch", "prompt", "gen", "dtype", "stack", "allreduce")


def point_of(flags: ScenarioFlags) -> dict[str, Any]:
    """Fields that were given, and settings.

    Raises
    ------
    UsageError
        The flags ask for another engine or for jitter, which a question of many predictions does not take.
    """
    usual = {field.name: field.default for field in fields(ScenarioFlags)}
    for name in _SIMULATOR:
        if getattr(flags, name) != usual[name]:
            raise UsageError(
                f"--{name} is for single predictions", hint="leave it out: here the vectorised engine answers"
            )
    named = (
        "model",
        "cluster",
        "nodes",
        "gpus_per_node",
        "tp",
        "batch",
        "prompt",
        "gen",
        "dtype",
        "stack",
        "allreduce",
    )
    point = {name: getattr(flags, name) for name in named if getattr(flags, name) is not None}
    return {**point, "p2p": not flags.no_p2p, **settings(flags.set_ or [])}
