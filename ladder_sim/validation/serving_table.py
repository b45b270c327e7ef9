"""Tables of measured servings: CSV files of times with a number of requests kept in flight.

    model_path,system,backend,backend_version,dtype,gemm_quant_mode,tp_size,concurrency,isl,osl,silicon_ttft_ms,silicon_tpot_ms
    Qwen/Qwen3-32B,h100_sxm,vllm,0.12.0,bf16,,4,64,1024,512,346.1,19.6

This is the form of the servings in aiconfigurator-core. ``isl`` and ``osl`` are tokens of each prompt and answer,
``silicon_ttft_ms`` and ``silicon_tpot_ms`` mean times in milliseconds. dtype may be called precision. Columns that may
be left out or empty: backend_version (the newest), gemm_quant_mode and moe_quant_mode (as dtype), kv_dtype (as
`ladder_sim.Scenario` has it), spread (of lengths around their mean, either way, as a share of it), source, and those of
a plan: pp_size, attention_dp_size, moe_tp_size and moe_ep_size. concurrency counts the requests of one of
attention_dp_size groups. What the columns do not say of known campaigns is in `ladder_sim.validation.campaigns`; a row
with a source is read as it stands. Lines that start with ``#`` are comments.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, cast

from ladder_sim.closed_loop.step import LIMITS
from ladder_sim.errors import InfeasibleError, UnknownNameError, UsageError
from ladder_sim.hf.quantization import DType, LayerPart
from ladder_sim.specs import catalog
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import SPREAD
from ladder_sim.units import quoted
from ladder_sim.validation.campaigns import Facts, cluster_name, facts, format_name, model_name, stack_name
from ladder_sim.validation.dataset import COLUMNS as RUN_COLUMNS
from ladder_sim.validation.dataset import check_known, least_step_s, table_rows
from ladder_sim.values import real

TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
REQUIRED = ("model_path", "system", "backend", "dtype", "tp_size", "concurrency", "isl", "osl", *TIMES)
_PLAN = ("pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_OPTIONAL = ("backend_version", "gemm_quant_mode", "moe_quant_mode", *_PLAN, "kv_dtype", "spread", "source")
# another name of the column
_ALIAS = {"precision": "dtype"}
COLUMNS = (*REQUIRED, *_ALIAS, *_OPTIONAL)

_MAX_MILLISECONDS = 1e9
# by which two measurements of TPOT differ if they are not repeats of one run: half of 155 repeats in serving_moe.csv of
# aiconfigurator-core 0.12.0 are within 0.6 %
SAME_TPOT = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was served by what; rows that share it are predicted together."""

    model: str
    cluster: str
    stack: str
    """With the engine's version, as in "vllm@0.12.0"."""
    dtype: str
    kv_dtype: str | None
    plan: Plan
    spread: float = SPREAD
    """As `ladder_sim.specs.workload.Workload` has it."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts of the layers that the checkpoint keeps in 16 bits, if that is not the model's."""
    server: tuple[tuple[str, float | str], ...] = ()
    """Settings of the server that are not the stack's."""

    @property
    def engine(self) -> str:
        """Name of the engine without its version."""
        return self.stack.partition("@")[0]

    def scenario(self, concurrency: int | None = None, prompt: int = 1024, gen: int = 512) -> Scenario:
        """Return the scenario of one load of this setup, of any variant."""
        plan = self.plan
        model = catalog.model(self.model)
        if self.unquantized:
            dtype = cast(DType, self.dtype)
            model = dataclasses.replace(model, weights_dtype=dtype, unquantized=self.unquantized)
        return Scenario(
            model=model,
            cluster=self.cluster,
            nodes=plan.nodes(catalog.cluster(self.cluster).gpus_per_node),
            **dataclasses.asdict(plan),
            stack=self.stack,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            concurrency=plan.groups if concurrency is None else concurrency,
            prompt=prompt,
            gen=gen,
            overrides={**dict(self.server), **({} if self.spread == SPREAD else {"workload.spread": self.spread})},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One row of a table."""

    line: int
    """Line in the file, from 1."""
    setup: Setup
    concurrency: int
    prompt: int
    """Mean length."""
    gen: int
    """Mean length."""
    ttft_s: float
    """Measured."""
    tpot_s: float
    """Measured."""
    source: str = ""
    """Who measured it."""
    step_tokens: int = 0
    """Most tokens of one of the server's steps; 0: as the stack has it."""
    step_requests: int = 0
    """Most requests that the server runs at a time; 0: as the stack has it."""
    left_out: str = ""
    """Why it is not predicted, as far as its campaign is known."""

    def scenario(self) -> Scenario:
        """Return the scenario of a serving, with its load."""
        return self.setup.scenario(self.concurrency, self.prompt, self.gen)

    @classmethod
    def loads(cls, rows: Sequence[Self]) -> dict[str, list[int]]:
        """Return the loads of several servings of one setup, by the names of figures that vary with a load."""
        names = ("concurrency", "prompt", "gen", *LIMITS)
        return {name: [getattr(row, name) for row in rows] for name in names}

    def __str__(self) -> str:
        setup = self.setup
        where = f"{setup.model}, {setup.dtype}, {setup.plan} on {setup.cluster}, {setup.stack}"
        return f"{where}, {self.concurrency} in flight, {self.prompt} + {self.gen} tokens"


def is_serving_table(content: bytes) -> bool:
    """Whether the header of a file names columns of servings, and more of them than of runs."""
    lines = (line.strip() for line in content.decode("utf-8-sig", "replace").split("\n"))
    header = next((line for line in lines if line and not line.startswith("#")), "")
    # separated by anything: reading the table says that commas are needed
    names = set(re.findall(r"\w+", header))
    names = {_ALIAS.get(name, name) for name in names}
    return len(names & set(REQUIRED)) > len(names & {*RUN_COLUMNS})


def read_servings(content: bytes, name: str) -> tuple[Serving, ...]:
    """Read a table of servings; messages call it `name`, and say line and column where a row breaks a rule."""
    rows = [row for _, row in table_rows(content, name, _check_columns, _row)]
    if not rows:
        raise UsageError(f"{name}: holds no serving", hint=f"columns: {', '.join(COLUMNS)}; then a row per serving")
    if all(row.serving.left_out.startswith(UNKNOWN) for row in rows):
        first = rows[0].serving
        try:
            model_name(first.setup.model)
        except UsageError as error:
            raise UsageError(f"{name}, line {first.line}: {error.message}", hint=error.hint) from None
    return _compared(rows)


# begins why a row of a model that is not in the catalogue is left out
UNKNOWN = "unknown model"


class _Row(NamedTuple):
    """A line, and what can be said of it only next to others."""

    serving: Serving
    without_attention_dp: Setup | None
    """What ran if the degree of attention had no effect, if that may be so."""
    faster_left_out: str
    """Why it is left out if the same was also measured slower."""


def _compared(rows: Sequence[_Row]) -> tuple[Serving, ...]:
    """Return the servings, with the setup or the exclusion that other rows of the same load imply."""
    measured: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for row in rows:
        measured[_point(row.serving, row.serving.setup)].append(row.serving.tpot_s)
    servings = []
    for serving, setup, faster in rows:
        like_s = measured[_point(serving, setup)] if setup else ()
        if setup and any(abs(serving.tpot_s - tpot_s) < SAME_TPOT * tpot_s for tpot_s in like_s):
            serving = dataclasses.replace(serving, setup=setup)
        slowest_s = max(measured[_point(serving, serving.setup)], default=0.0)
        if faster and serving.tpot_s < (1.0 - SAME_TPOT) * slowest_s:
            serving = dataclasses.replace(serving, left_out=faster)
        servings.append(serving)
    return tuple(servings)


def _point(serving: Serving, setup: Setup) -> tuple[object, ...]:
    """Return what equal measurements have in common: setup, requests in flight, prompt and answer."""
    return setup, serving.concurrency, serving.prompt, serving.gen


def _check_columns(columns: list[str], where: str) -> None:
    named = [_ALIAS.get(column, column) for column in columns]
    missing = [column for column in REQUIRED if column not in named]
    if missing:
        raise UsageError(
            f"{where}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            hint=f"the first line names the columns: {', '.join(REQUIRED)}",
        )
    check_known(columns, COLUMNS, where)
    if len(set(named)) < len(named):
        raise UsageError(f"{where}: columns dtype and precision are the same", hint="keep one of them")


def _row(line: int, cells: Mapping[str, str]) -> _Row:
    cell = {
        **dict.fromkeys((*REQUIRED, *_OPTIONAL), ""),
        **{_ALIAS.get(name, name): text for name, text in cells.items()},
    }
    for column in REQUIRED:
        if not cell[column]:
            raise UsageError(f"{column} is empty: must be given on every row", hint=f"fill the column {column}")
    # who measured it says so: it is of none of these campaigns
    known = Facts() if cell["source"] else facts(cell)
    try:
        model = model_name(known.model or cell["model_path"])
    except UsageError as error:
        if not isinstance(error.__cause__, UnknownNameError):
            raise
        # nothing is known of this model: the row is left out, and the others are predicted
        model, cluster, stack, dtype = (cell[name] for name in ("model_path", "system", "backend", "dtype"))
        plan = Plan(tp=_whole(cell, "tp_size"))
        setup = Setup(model=model, cluster=cluster, stack=stack, dtype=dtype, kv_dtype=None, plan=plan)
        known, groups = Facts(left_out=error.__cause__.message), 1
    else:
        setup, groups = _setup(cell, known, model)
    in_flight = _whole(cell, "concurrency")
    serving = Serving(
        line=line,
        setup=setup,
        concurrency=groups * in_flight,
        prompt=_tokens(cell, "isl", known),
        gen=_tokens(cell, "osl", known),
        ttft_s=_seconds(cell, "silicon_ttft_ms"),
        # one token has no time per further token
        tpot_s=_seconds(cell, "silicon_tpot_ms", zero=_whole(cell, "osl") == 1),
        source=cell["source"],
        step_tokens=_step_tokens(cell, known),
        step_requests=known.idle_requests and max(1, in_flight - known.idle_requests),
        left_out=known.left_out,
    )
    _check_times(serving, cell)
    plan = setup.plan
    ignored = plan.attention_dp > 1 and known.attention_dp_in_tp
    shared = dataclasses.replace(plan, tp=plan.ranks, attention_dp=1)
    return _Row(serving, dataclasses.replace(setup, plan=shared) if ignored else None, known.faster_left_out)


def _setup(cell: Mapping[str, str], known: Facts, model: str) -> tuple[Setup, int]:
    """Return what served a row, and how many groups have the requests that the row counts."""
    plan, groups = _plan(cell, known, has_experts=catalog.model(model).experts > 0)
    setup = Setup(
        model=model,
        cluster=cluster_name(cell["system"]),
        stack=stack_name(cell["backend"], known.version or cell["backend_version"]),
        dtype=format_name(cell, model, known.fp8),
        kv_dtype=cell["kv_dtype"] or known.kv_dtype,
        plan=plan,
        spread=_spread(cell, known.shortest),
        unquantized=known.unquantized,
        server=tuple(known.server.items()),
    )
    return setup, groups


def _step_tokens(cell: Mapping[str, str], known: Facts) -> int:
    """Return the most tokens of a step; 0: as the stack has it."""
    if not known.spare_step_tokens:
        return 0
    tokens = _whole(cell, "concurrency") + _tokens(cell, "isl", known) + known.spare_step_tokens
    return math.ceil(tokens / known.step_tokens_multiple) * known.step_tokens_multiple


def _check_times(serving: Serving, cell: Mapping[str, str]) -> None:
    """Refuse times that no such model takes."""
    if serving.left_out:
        return
    try:
        scenario = serving.scenario()
    except InfeasibleError:
        # reported by the comparison
        return
    least_s = least_step_s(scenario)
    # the first token takes a step, too
    for column in TIMES if serving.gen > 1 else TIMES[:1]:
        if _seconds(cell, column) < least_s:
            raise UsageError(
                f"{column} is {cell[column]}: a step reads the weights, which takes more than "
                f"{1e3 * least_s:.3g} ms here",
                hint="times are in milliseconds; check model, tp_size and precision too",
            )


def _plan(cell: Mapping[str, str], known: Facts, *, has_experts: bool) -> tuple[Plan, int]:
    tp, pp = _whole(cell, "tp_size"), _degree(cell, "pp_size", 1)
    if not has_experts:
        # the scenario refuses groups
        attention_dp = _degree(cell, "attention_dp_size", 1)
        return Plan(tp=tp, pp=pp, attention_dp=attention_dp), attention_dp
    ep = _degree(cell, "moe_ep_size", 1)
    expert_tp = _degree(cell, "moe_tp_size", max(1, tp // ep))
    groups = attention_dp = _degree(cell, "attention_dp_size", max(1, expert_tp * ep // tp))
    if known.product_of_gpus and tp * attention_dp == expert_tp * ep and expert_tp == ep:
        tp, attention_dp, expert_tp = min(tp, ep), min(attention_dp, ep), 1
    if known.experts_on_all_ranks:
        attention_dp, expert_tp, ep = 1, 1, tp
    elif attention_dp > 1 and known.attention_dp_in_tp:
        tp, attention_dp, expert_tp, ep = 1, tp, 1, tp
    if tp * attention_dp != expert_tp * ep:
        raise UsageError(
            f"tp_size {tp} x attention_dp_size {attention_dp}: must be moe_tp_size {expert_tp} x moe_ep_size {ep}, the "
            "same GPUs",
            hint="attention and experts of a layer are on the same ranks",
        )
    return Plan(tp=tp, pp=pp, ep=ep, attention_dp=attention_dp), groups


def _degree(cell: Mapping[str, str], column: str, empty: int) -> int:
    return _whole(cell, column) if cell[column] else empty


def _tokens(cell: Mapping[str, str], column: str, known: Facts) -> int:
    shortest = 1.0 if known.shortest is None else known.shortest
    return max(1, round((1.0 + shortest) / 2.0 * _whole(cell, column)))


def _spread(cell: Mapping[str, str], shortest: float | None) -> float:
    """Return the spread of lengths around their mean: as the row says, or as its campaign drew them."""
    if cell["spread"]:
        return real(_number(cell, "spread"), "spread", 1.0, zero=True, hint="a share of the mean length, e.g. 0.1")
    return SPREAD if shortest is None else (1.0 - shortest) / (1.0 + shortest)


def _whole(cell: Mapping[str, str], column: str) -> int:
    value = _number(cell, column)
    # tables write counts as 16.0 too, but not as 1e3
    if not re.fullmatch(r"\+?\d+(\.0*)?", cell[column], re.ASCII) or not 1 <= value <= 1e9:
        raise UsageError(f"{column} is {quoted(cell[column])}: must be a whole number from 1", hint=f"e.g. {column} 8")
    return int(value)


def _seconds(cell: Mapping[str, str], column: str, *, zero: bool = False) -> float:
    return 1e-3 * real(_number(cell, column), column, _MAX_MILLISECONDS, zero=zero, hint="milliseconds, e.g. 16.5")


def _number(cell: Mapping[str, str], column: str) -> float:
    try:
        return float(cell[column])
    except ValueError:
        raise UsageError(
            f"{column} is {quoted(cell[column])}: must be a number without unit",
            hint="times are in milliseconds" if column in TIMES else "a count",
        ) from None
