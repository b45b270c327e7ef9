"""The tensor-parallel degree, batch and variant at which one static batch is best, and what they trade."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from ladder_sim.confidence import Confidence
from ladder_sim.costs.fitting import fit_error
from ladder_sim.costs.memory import memory_use
from ladder_sim.display.notes import Notes
from ladder_sim.errors import InfeasibleError, MemoryFitError, UnknownNameError, UsageError
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.signatures import typed
from ladder_sim.sweeps.confidences import confidences
from ladder_sim.sweeps.evaluate import MEMORY, PROBLEM
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid, scenario_at
from ladder_sim.sweeps.price import PRICE_CAVEAT, check_price, token_price
from ladder_sim.sweeps.run import how_of, run
from ladder_sim.sweeps.table import SweepTable
from ladder_sim.units import format_seconds

Objective = Literal["tpot", "ttft", "tokens_per_s", "tokens_per_gpu"]
BATCHES = "1:256"
SERVING = (
    "not a recommendation for serving: times and rates are of one static batch, while engines batch requests "
    "continuously as they arrive"
)
TTFT_BOUND = (
    "the bound on TTFT bounds the prefill of a whole batch, which a server does not wait for: throughput under it is "
    "several times too low for serving"
)
# variants that a model can be trained as; the upper bound is not one
CANDIDATES = ("standard", "parallel", "ladder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run the model."""

    variant: str
    tp: int
    """Tensor-parallel degree: GPUs in use."""
    batch: int
    """Requests that start together."""
    ttft_s: float
    tpot_s: float
    """Time per further token; TTFT if there is one token only."""
    tokens_per_s: float
    """Of the whole batch."""
    memory_bytes: float
    """Of one GPU."""
    usd_per_Mtoken: float | None
    """US dollars for a million new tokens; None: no price was given."""

    @property
    def tokens_per_gpu(self) -> float:
        """Tokens per second and GPU."""
        return self.tokens_per_s / self.tp


# the smallest is the best
_RANKS: Mapping[Objective, Callable[[Option], float]] = {
    "tpot": lambda option: option.tpot_s,
    "ttft": lambda option: option.ttft_s,
    "tokens_per_s": lambda option: -option.tokens_per_s,
    "tokens_per_gpu": lambda option: -option.tokens_per_gpu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The options, and the best trade-offs among them."""

    objective: Objective
    options: tuple[Option, ...]
    """Everything that fits the memory and the limits, best first."""
    front: tuple[Option, ...]
    """The Pareto front of time per token and tokens per GPU, fastest first."""
    unfit: int
    """Combinations of degree and batch that cannot run."""
    beyond: int
    """Options that exceed a limit."""
    cautions: tuple[str, ...]
    """Why the best option may not be the best choice, serving first."""
    confidences: Mapping[str, Confidence]
    """How sure the predictions are, by degree and batch."""

    @property
    def best(self) -> Option:
        """The best option."""
        return self.options[0]

    @property
    def notes(self) -> Notes:
        """The cautions, and what the reader should know about the predictions."""
        return Notes(confidences=self.confidences, about=self.cautions)

    @property
    def best_by_variant(self) -> dict[str, Option]:
        """The best of each variant, best first."""
        best: dict[str, Option] = {}
        for option in self.options:
            best.setdefault(option.variant, option)
        return best


@typed()
def advise(
    point: Mapping[str, Any],
    objective: Objective = "tokens_per_gpu",
    variants: str | Sequence[str] = CANDIDATES,
    *,
    max_tpot_s: float = np.inf,
    max_ttft_s: float = np.inf,
    usd_per_gpu_hour: float | None = None,
    profile: str | None = None,
) -> Advice:
    """Search degrees, batches and variants for the best static batch that fits the memory.

    Not a recommendation for serving, where requests are batched continuously.

    Parameters
    ----------
    point
        Everything else, as for `ladder_sim.sweeps.run.sweep`. ``"nodes"`` is the largest number of nodes; ``"tp"`` and
        ``"batch"`` restrict the search, by default to every degree and to 1, 2, 4 .. 256.
    objective
        ``"tpot"`` and ``"ttft"`` are best small, ``"tokens_per_s"`` and ``"tokens_per_gpu"`` large.
    variants
        Residual wirings to choose from.
    max_tpot_s, max_ttft_s
        Limits to keep.
    usd_per_gpu_hour
        Price of one GPU.
    profile
        As in `predict`.

    Returns
    -------
    Advice
        Every option that fits, best first, and the Pareto front of time per token and tokens per GPU.

    Raises
    ------
    UnknownNameError
        There is no such objective.
    InfeasibleError
        Nothing fits the memory and the limits.

    Examples
    --------
    >>> best = advise({"model": "70b"}, "tpot").best
    >>> best.variant, best.tp, best.batch
    ('ladder', 8, 1)
    """
    if objective not in _RANKS:
        raise UnknownNameError("objective", objective, get_args(Objective))
    if point.get("concurrency") is not None:
        raise UsageError(
            "advise searches static batches, not requests in flight",
            hint="leave out --concurrency, or sweep it: ladder-sim sweep --concurrency 1:256",
        )
    price = None if usd_per_gpu_hour is None else check_price(usd_per_gpu_hour)
    fixed = {name: value for name, value in point.items() if name not in ("nodes", "tp", "batch")}
    widest = scenario_at({**fixed, "nodes": point.get("nodes", 1), "tp": 1})
    axes = {**fixed, "tp": point.get("tp", widest.tp_degrees()), "batch": point.get("batch", BATCHES)}
    grid = Grid(axes, variants)
    table = run(grid, how_of(grid, profile, ignore_memory=False), serial)
    fitting = [
        _option(table, int(row), variant, price) for row in np.flatnonzero(table.feasible) for variant in grid.variants
    ]
    options = [option for option in fitting if option.tpot_s <= max_tpot_s and option.ttft_s <= max_ttft_s]
    if not fitting:
        raise _unfit(table, {**fixed, "nodes": widest.nodes})
    if not options:
        raise _beyond(fitting)
    options.sort(key=_RANKS[objective])
    return Advice(
        objective=objective,
        options=tuple(options),
        front=pareto_front(options),
        unfit=int(np.sum(~table.feasible)),
        beyond=len(fitting) - len(options),
        cautions=tuple(_cautions(options, widest.model, int(np.max(table["batch"])), bounded=max_ttft_s < np.inf)),
        confidences=confidences(axes, variants, profile=profile),
    )


def _cautions(options: Sequence[Option], model: ModelSpec, largest: int, *, bounded: bool) -> Iterator[str]:
    """From the options, best first, and the largest batch that was tried."""
    yield SERVING
    if bounded:
        yield TTFT_BOUND
    best = options[0]
    if best.usd_per_Mtoken is not None:
        yield PRICE_CAVEAT
    own = "ladder" if model.ladder_layers else "parallel" if model.parallel_blocks else "standard"
    if best.variant != own:
        today = next((option for option in options if option.variant == own), None)
        which = f"{own}, TP {today.tp}, batch {today.batch}" if today else f"{own}, which is no option"
        yield f"{best.variant} must be trained: {model.name} has no such weights; best with its own: {which}"
    if best.batch == largest > 1:
        yield f"batch {largest} is the largest that was tried: a larger one may be better"


def pareto_front(options: Sequence[Option]) -> tuple[Option, ...]:
    """Options that no other beats in both time per token and tokens per GPU, fastest first."""
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option.tpot_s, -option.tokens_per_gpu)):
        if not front or option.tokens_per_gpu > front[-1].tokens_per_gpu:
            front.append(option)
    return tuple(front)


def _option(table: SweepTable, row: int, variant: str, price: float | None) -> Option:
    ttft_s, tpot_s, tokens_per_s = (
        float(table[f"{variant}.{metric}"][row]) for metric in ("ttft_s", "tpot_s", "tokens_per_s")
    )
    tp = int(table["tp"][row])
    return Option(
        variant=variant,
        tp=tp,
        batch=int(table["batch"][row]),
        ttft_s=ttft_s,
        tpot_s=ttft_s if np.isnan(tpot_s) else tpot_s,
        tokens_per_s=tokens_per_s,
        memory_bytes=float(table[MEMORY][row]),
        usd_per_Mtoken=None if price is None else token_price(price, tp, tokens_per_s),
    )


def _unfit(table: SweepTable, fixed: Mapping[str, Any]) -> InfeasibleError:
    """No degree and batch can run: why not even the one that needs least, and what would."""
    if np.isnan(table[MEMORY]).all():
        return InfeasibleError(f"no degree and batch can run: {table[PROBLEM][-1]}", hint="take other degrees")
    row = int(np.nanargmin(table[MEMORY]))
    scenario = scenario_at({**fixed, "tp": int(table["tp"][row]), "batch": int(table["batch"][row])})
    error = fit_error(scenario, memory_use(scenario), flags={"batch": "--batches"})
    return MemoryFitError(
        f"no degree and batch can run: at batch {scenario.workload.batch} {error.message}", hint=error.hint
    )


def _beyond(fitting: Sequence[Option]) -> InfeasibleError:
    tpot_s, ttft_s = min(option.tpot_s for option in fitting), min(option.ttft_s for option in fitting)
    return InfeasibleError(
        "every option exceeds the bound on TPOT or TTFT",
        hint=f"the shortest TPOT is {format_seconds(tpot_s)}, the shortest TTFT {format_seconds(ttft_s)}",
    )
