"""Tables of measured servings: CSV files of times with a number of requests kept in flight.

    model_path,system,backend,backend_version,dtype,gemm_quant_mode,tp_size,concurrency,isl,osl,silicon_ttft_ms,silicon_tpot_ms
    Qwen/Qwen3-32B,h100_sxm,vllm,0.12.0,bf16,,4,64,1024,512,346.1,19.6

This is the form of the servings in aiconfigurator-core. ``isl`` and ``osl`` are tokens of each prompt and answer,
``silicon_ttft_ms`` and ``silicon_tpot_ms`` mean times in milliseconds. Columns that may be left out or empty:
backend_version (the newest), gemm_quant_mode (as dtype), kv_dtype and arrivals (as `ladder_sim.Scenario.of` has them)
and source. Lines that start with ``#`` are comments.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from ladder_sim.costs.memory import weight_bytes
from ladder_sim.errors import InfeasibleError, UnknownNameError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.values import real
from ladder_sim.units import quoted
from ladder_sim.validation.dataset import COLUMNS as RUN_COLUMNS
from ladder_sim.validation.dataset import check_known, table_rows

TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
REQUIRED = ("model_path", "system", "backend", "dtype", "tp_size", "concurrency", "isl", "osl", *TIMES)
DEFAULTS = MappingProxyType(
    {"backend_version": "", "gemm_quant_mode": "", "kv_dtype": "", "arrivals": "", "source": ""}
)
COLUMNS = (*REQUIRED, *DEFAULTS)

# names of systems in aiconfigurator-core that are not those of our clusters with underscores
_SYSTEMS = MappingProxyType(
    {
        "a100_sxm": "a100-sxm-hdr",
        "gb200": "gb200-nvl72",
        "gb200_sxm": "gb200-nvl72",
        "l40s": "l40s-pcie",
        "rtx_pro_6000_server": "rtx-pro-6000",
    }
)
# its names of precisions; what is left is our own
_FORMATS = MappingProxyType(
    {
        "bfloat16": "bf16",
        "float16": "fp16",
        "fp8_static": "fp8",
        "fp8_block": "fp8-block",
        "fp4": "nvfp4",
        "int4_wo": "w4a16",
    }
)
_MAX_MILLISECONDS = 1e9
# of the time that the weights take at the memory's bandwidth: less is another unit or another model
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was served by what; rows that share it are predicted together."""

    model: str
    cluster: str
    stack: str
    """With the engine's version, as in "vllm@0.12.0"."""
    dtype: str
    kv_dtype: str | None
    arrivals: str
    tp: int

    def scenario(self, concurrency: int = 1, prompt: int = 1024, gen: int = 512) -> Scenario:
        """One of its loads, of any variant."""
        per_node = catalog.cluster(self.cluster).gpus_per_node
        return Scenario.of(
            model=self.model,
            cluster=self.cluster,
            nodes=-(-self.tp // per_node),
            tp=self.tp,
            stack=self.stack,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            arrivals=self.arrivals,
            concurrency=concurrency,
            prompt=prompt,
            gen=gen,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One row of a table."""

    line: int
    """In its file, from 1."""
    setup: Setup
    concurrency: int
    prompt: int
    gen: int
    ttft_s: float
    """Measured."""
    tpot_s: float
    """Measured."""
    source: str = ""
    """Who measured it."""

    def __str__(self) -> str:
        setup = self.setup
        where = f"{setup.model}, {setup.dtype}, TP {setup.tp} on {setup.cluster}, {setup.stack}"
        return f"{where}, {self.concurrency} in flight, {self.prompt} + {self.gen} tokens"


def is_serving_table(content: bytes) -> bool:
    """Whether the header of a file names columns of servings, and more of them than of runs."""
    lines = (line.strip() for line in content.decode("utf-8-sig", "replace").split("\n"))
    header = next((line for line in lines if line and not line.startswith("#")), "")
    # separated by anything: reading the table says that commas are needed
    names = set(re.findall(r"\w+", header))
    return len(names & set(REQUIRED)) > len(names & {*RUN_COLUMNS})


def read_servings(content: bytes, name: str) -> tuple[Serving, ...]:
    """Read a table of servings.

    Parameters
    ----------
    content
        Of the file.
    name
        What messages call it.

    Raises
    ------
    UsageError
        The file is no such table, or a row breaks a rule; the message names line and column.
    """
    servings = tuple(row for _, row in table_rows(content, name, _check_columns, _serving))
    if not servings:
        raise UsageError(f"{name}: holds no serving", hint=f"columns: {', '.join(COLUMNS)}; then a row per serving")
    return servings


def _check_columns(columns: list[str], where: str) -> None:
    missing = [column for column in REQUIRED if column not in columns]
    if missing:
        raise UsageError(
            f"{where}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            hint=f"the first line names the columns: {', '.join(REQUIRED)}",
        )
    check_known(columns, COLUMNS, where)


def _serving(line: int, cells: Mapping[str, str]) -> Serving:
    cell = {**DEFAULTS, **cells}
    for column in REQUIRED:
        if not cell[column]:
            raise UsageError(f"{column} is empty: must be given on every row", hint=f"fill the column {column}")
    setup = Setup(
        model=_model(cell["model_path"]),
        cluster=_cluster(cell["system"]),
        stack=_stack(cell["backend"], cell["backend_version"]),
        dtype=_format(cell),
        kv_dtype=cell["kv_dtype"] or None,
        arrivals=cell["arrivals"] or _arrivals(cell["backend"].lower(), cell["backend_version"]),
        tp=_whole(cell, "tp_size"),
    )
    row = Serving(
        line=line,
        setup=setup,
        concurrency=_whole(cell, "concurrency"),
        prompt=_whole(cell, "isl"),
        gen=_whole(cell, "osl"),
        ttft_s=_seconds(cell, "silicon_ttft_ms"),
        # one token has no time per further token
        tpot_s=_seconds(cell, "silicon_tpot_ms", zero=_whole(cell, "osl") == 1),
        source=cell["source"],
    )
    try:
        scenario = setup.scenario(row.concurrency, row.prompt, row.gen)
    except InfeasibleError:
        # reported by the comparison
        return row
    least_s = _LEAST_SHARE * weight_bytes(scenario) / scenario.cluster.gpu.hbm_bandwidth_Bps
    # the first token takes a step, too
    for column in TIMES if row.gen > 1 else TIMES[:1]:
        if _seconds(cell, column) < least_s:
            raise UsageError(
                f"{column} is {cell[column]}: a step reads the weights, which takes more than "
                f"{1e3 * least_s:.3g} ms here",
                hint="times are in milliseconds; check model, tp_size and precision too",
            )
    return row


def _model(path: str) -> str:
    # checked here, so that the message names the column
    try:
        catalog.model(path)
    except UsageError as error:
        raise UsageError(f"model_path: {error.message}", hint=error.hint) from error
    name = catalog.model_id(path)
    return name if name in catalog.model_names() else path


def _cluster(system: str) -> str:
    key = system.lower()
    name = _SYSTEMS.get(key, key.replace("_", "-"))
    if name in catalog.cluster_names() or system.lower().endswith(".toml"):
        return name if name in catalog.cluster_names() else system
    known = (*_SYSTEMS, *(each.replace("-", "_") for each in catalog.cluster_names()))
    raise UnknownNameError("system", system, known, more="`ladder-sim list clusters` shows all, with - for _")


def _stack(backend: str, version: str) -> str:
    name = backend.lower()
    known = tuple(each for each in catalog.stack_names() if catalog.stack(each).serves)
    if name not in known and not name.endswith(".toml"):
        raise UnknownNameError("backend", backend, known, more="a stack's file ends in .toml")
    stack = f"{name}@{version}" if version else backend if name.endswith(".toml") else name
    try:
        catalog.stack(stack)
    except UsageError as error:
        raise UsageError(f"backend_version: {error.message}", hint=error.hint) from error
    return stack


def _format(cell: Mapping[str, str]) -> str:
    column = "gemm_quant_mode" if cell["gemm_quant_mode"] else "dtype"
    key = cell[column].lower()
    name = _FORMATS.get(key, key.replace("_", "-"))
    try:
        # the spec checks it
        Scenario.of(dtype=name)
    except UsageError as error:
        raise UsageError(f"{column}: {error.message}", hint=error.hint) from error
    return name


def _arrivals(backend: str, version: str) -> str:
    campaigns = _campaigns().get("lockstep", ())
    return (
        "lockstep"
        if any(backend == each["backend"] and version in each["versions"] for each in campaigns)
        else "steady"
    )


@cache
def _campaigns() -> Mapping[str, Any]:
    text = (resources.files("ladder_sim.validation") / "data" / "campaigns.toml").read_text("utf-8")
    return tomllib.loads(text)


def _whole(cell: Mapping[str, str], column: str) -> int:
    value = _number(cell, column)
    # tables write counts as 16.0 too
    if not value.is_integer() or not 1 <= value <= 1e9:
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
