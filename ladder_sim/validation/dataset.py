"""End-to-end measurements from CSV files: a row is one configuration and its throughput.

    source,model,cluster,nodes,tp,p2p,stack,dtype,variant,batch,prompt,gen,tokens_per_s
    arXiv 2501.06589,llama-3.1-70b,h100-sxm,1,8,1,gpt-fast,fp16,ladder,4,1024,512,331.45

Lines that start with ``#`` are comments; the first other line names the columns, in any order. ``tokens_per_s`` is of
the whole batch: ``batch * gen / request_s``, prefill included; ``request_s`` may stand in its place, or both of
``ttft_s``, the prefill, and ``tpot_s``, one of the ``gen - 1`` decode steps. ``p2p`` is 1 where
GPUs of a node reach each other directly, 0 where not. Models, clusters and stacks are catalog names or files. Columns
that may be left out or empty: source, nodes (1), p2p (1), stack (gpt-fast), dtype (bf16). A cell holds no line break.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ladder_sim.errors import InfeasibleError, UnknownNameError, UsageError
from ladder_sim.hf.feed_forward import Moe
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS, Argument
from ladder_sim.specs.cluster import THIS_MACHINE
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.system.files import read_bytes, shown_path
from ladder_sim.units import quoted
from ladder_sim.values import real
from ladder_sim.wirings.names import canonical, parse

DEFAULT_DATASET = "ladder-70b"
REQUIRED = ("model", "cluster", "tp", "variant", "batch", "prompt", "gen")
DEFAULTS = {"source": "", "nodes": "1", "p2p": "1", "stack": "gpt-fast", "dtype": "bf16"}
TIMES = ("tokens_per_s", "request_s")
# prefill and decode step, apart
PASSES = ("ttft_s", "tpot_s")
COLUMNS = (*REQUIRED, *DEFAULTS, *TIMES, *PASSES)
# degrees that a calibration may see
FIT_TPS = (2, 4)
# between tokens_per_s and request_s of one row: more than rounding of published figures explains
MAX_DISAGREEMENT = 0.01
Row = TypeVar("Row")
# beyond any machine and any request
_MAX_TOKENS_PER_S, _MAX_SECONDS = 1e12, 1e9
# of the time that the weights take at the memory's bandwidth: less is another unit or another model
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What was run, but for the variant, as in `Scenario`; rows that share it are compared with each other."""

    source: str
    """Who measured it."""
    model: str
    cluster: str
    nodes: int
    tp: int
    p2p: bool
    stack: str
    dtype: str
    batch: int
    prompt: int
    gen: int

    def scenario(self) -> Scenario:
        """Resolve names and check everything, as `Scenario` does."""
        return Scenario(**{name: getattr(self, name) for name in _ARGUMENTS})


# columns that are arguments of a scenario
_ARGUMENTS = tuple(field.name for field in fields(Configuration) if field.name in ARGUMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of a data set."""

    line: int
    """Line in the file, from 1."""
    configuration: Configuration
    """All but the variant."""
    variant: str
    """Canonical name."""
    tokens_per_s: float
    """Measured, of the whole batch, prefill included."""
    ttft_s: float | None = None
    """Measured prefill, seconds; None: not measured apart."""
    tpot_s: float | None = None
    """Measured time of one decode step, seconds; None: not measured apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Measurements in the order of their file."""

    name: str
    """Name of a shipped data set, or the file's path."""
    measurements: tuple[Measurement, ...]
    """At least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A rule that parts measurements into those for fitting and those for testing."""

    models: tuple[str, ...]
    """Models of the rows that may be fitted."""
    variants: tuple[str, ...]
    """Variants of the rows that may be fitted."""
    tps: tuple[int, ...]
    """Tensor-parallel degrees of the rows that may be fitted; the others test how a fit carries over."""

    def fits(self, row: Measurement) -> bool:
        """Whether a calibration may see the row."""
        run = row.configuration
        return run.model in self.models and row.variant in self.variants and run.tp in self.tps


_FIT_MODELS = ("llama-3.1-70b",)
PROTOCOLS = {
    "A": Protocol(models=_FIT_MODELS, variants=("standard", "upper-bound"), tps=FIT_TPS),
    "B": Protocol(models=_FIT_MODELS, variants=("standard", "upper-bound", "ladder"), tps=FIT_TPS),
}


def dataset_names() -> tuple[str, ...]:
    """Return the names of the data sets that come with the package."""
    return _shipped(".csv")


def _shipped(ending: str) -> tuple[str, ...]:
    files = (resources.files("ladder_sim.validation") / "data").iterdir()
    return tuple(sorted(file.name.removesuffix(ending) for file in files if file.name.endswith(ending)))


def result_file(name_or_path: str) -> Path:
    """Return the path of results of load generators that come with the package, by name, or of a file."""
    shipped = Path(str(resources.files("ladder_sim.validation") / "data" / f"{name_or_path}.json"))
    return shipped if shipped.is_file() else Path(name_or_path)


def read_dataset(name_or_path: str = DEFAULT_DATASET) -> Dataset:
    """Read a data set that comes with the package, by name, or a CSV file in the same form.

    Raises UnknownNameError if there is no such data set; UsageError if the file cannot be read, or a row breaks a rule;
    the message names the line.

    Examples
    --------
    >>> len(read_dataset("ladder-70b").measurements)
    70
    """
    return read_runs(*read_table(name_or_path))


def read_table(name_or_path: str) -> tuple[bytes, str]:
    """Return the content of a data set that comes with the package or of a file, and what messages call it."""
    if name_or_path in dataset_names():
        shipped = resources.files("ladder_sim.validation") / "data" / f"{name_or_path}.csv"
        return shipped.read_bytes(), name_or_path
    path = Path(name_or_path)
    if path.suffix.lower() != ".csv" and len(path.parts) < 2 and not path.exists():
        known = (*dataset_names(), *_shipped(".json"))
        raise UnknownNameError("data set", name_or_path, known, more="a file's name ends in .csv")
    what = f"a CSV file, or the name of one that comes with the package: {', '.join(dataset_names())}"
    return read_bytes(path, what=what, error=UsageError), shown_path(path)


def read_runs(content: bytes, name: str) -> Dataset:
    """Read a table of runs of static batches; `name` is what messages call it. They name the line."""
    seen: dict[tuple[Configuration, str], int] = {}
    measurements = []
    for line, row in table_rows(content, name, _check_columns, _measurement):
        first = seen.setdefault((row.configuration, row.variant), line)
        if first != line:
            raise UsageError(
                f"{name}, line {line}: the same configuration as line {first} ({row.variant}, TP "
                f"{row.configuration.tp}, batch {row.configuration.batch})",
                hint="keep one of them, or their mean; runs of different origin differ in the column source",
            )
        measurements.append(row)
    if not measurements:
        raise UsageError(f"{name}: holds no measurement", hint=f"columns: {', '.join(COLUMNS)}; then a row per run")
    return Dataset(name=name, measurements=tuple(measurements))


def table_rows(
    content: bytes,
    name: str,
    check_columns: Callable[[list[str], str], None],
    read: Callable[[int, Mapping[str, str]], Row],
) -> Iterator[tuple[int, Row]]:
    """Yield the number of every line below the header of a CSV file, and the row that `read` makes of its cells.

    `check_columns` refuses a header, given where it stands.
    """
    try:
        # a mark at the start is what spreadsheets write
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}, line {line}: not UTF-8", hint="save the file as UTF-8 text") from None
    columns: list[str] = []
    for line, written in enumerate(text.split("\n"), 1):
        if not written.strip() or written.lstrip().startswith("#"):
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([written.rstrip("\r")], strict=True))]
        except csv.Error as error:
            raise UsageError(f"{name}, line {line}: not CSV ({error})", hint="quote cells that hold a comma") from None
        if not columns:
            columns = cells
            if len(columns) == 1:
                raise UsageError(
                    f"{name}, line {line}: one column, {quoted(cells[0])}: cells must be separated by commas",
                    hint="save the table as CSV, with commas",
                )
            check_columns(columns, f"{name}, line {line}")
            continue
        if len(cells) != len(columns):
            raise UsageError(
                f"{name}, line {line}: {len(cells)} cells: must be {len(columns)}, one per column",
                hint="leave a cell empty rather than out",
            )
        try:
            row = read(line, dict(zip(columns, cells, strict=True)))
        except UsageError as error:
            raise UsageError(f"{name}, line {line}: {error.message}", hint=error.hint) from error
        yield line, row


def _check_columns(columns: list[str], where: str) -> None:
    missing = [column for column in REQUIRED if column not in columns]
    timed = set(TIMES) & set(columns) or set(PASSES) <= set(columns)
    if missing or not timed:
        lacking = [*missing, *([] if timed else [" or ".join(TIMES)])]
        raise UsageError(
            f"{where}: missing column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}",
            hint=f"the first line names the columns: {', '.join(REQUIRED)}, and {' or '.join(TIMES)}, "
            f"or {' and '.join(PASSES)}",
        )
    check_known(columns, COLUMNS, where)


def check_known(columns: Sequence[str], known: Sequence[str], where: str) -> None:
    """Refuse columns that are unknown or there twice."""
    for column in columns:
        if column not in known:
            unknown = UnknownNameError("column", column, known)
            raise UsageError(f"{where}: {unknown.message}", hint=unknown.hint)
        if columns.count(column) > 1:
            raise UsageError(f"{where}: two columns '{column}'", hint="keep one of them")


def _measurement(line: int, cells: Mapping[str, str]) -> Measurement:
    cell = {**DEFAULTS, **{column: value for column, value in cells.items() if value}}
    for column in REQUIRED:
        if column not in cell:
            raise UsageError(f"{column} is empty: must be given on every row", hint=f"fill the column {column}")
    arguments = {name: _value(ARGUMENTS[name], cell[name]) for name in _ARGUMENTS}
    configuration = Configuration(source=cell["source"], **arguments)
    variant = canonical(cell["variant"])
    least_s = _least_step_s(configuration, variant)
    ttft_s, tpot_s = (_number(cell, name, _MAX_SECONDS) for name in PASSES)
    if configuration.gen == 1 and tpot_s is not None:
        raise UsageError("tpot_s of 1 new token: there is no decode step", hint="leave it empty")
    rate = _tokens_per_s(cell, configuration, ttft_s, tpot_s)
    steps_s = {"ttft_s": ttft_s, "tpot_s": tpot_s, "the request": configuration.batch / rate}
    for name, seconds in steps_s.items():
        if seconds is not None and seconds < least_s:
            raise UsageError(
                f"{name} takes {1e3 * seconds:.3g} ms a step, which reads the weights and takes more than "
                f"{1e3 * least_s:.3g} ms here",
                hint="times are in seconds, tokens_per_s of the whole batch; check model, tp and dtype too",
            )
    return Measurement(
        line=line,
        configuration=configuration,
        variant=variant,
        tokens_per_s=rate,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
    )


def _value(argument: Argument, text: str) -> Any:
    name = argument.name
    if argument.kind is bool:
        if text not in ("0", "1"):
            raise UsageError(f"{name} is {quoted(text)}: must be 1 or 0", hint=f"0 is the flag {argument.flag}")
        return text == "1"
    if argument.kind is int:
        # more digits than any count has, and than int() reads
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            raise UsageError(f"{name} is {quoted(text)}: must be a whole number from 1", hint=f"for example {name} 8")
        return int(text)
    # one name per model, whatever alias a row uses: equal rows are recognised
    name = catalog.model_id(text)
    return name if name in (*catalog.model_names(), *catalog.cluster_names(), *catalog.stack_names()) else text


def _least_step_s(configuration: Configuration, variant: str) -> float:
    """Refuse what breaks a rule, and return the seconds of a step at least.

    They are 0 of a scenario that cannot run, which is reported by the comparison.
    """
    model = catalog.model(configuration.model)
    parse(variant).check(model.layers)
    try:
        return least_step_s(configuration.scenario())
    except InfeasibleError:
        return 0.0


def least_step_s(scenario: Scenario) -> float:
    """Return the seconds that no step falls below: half of what the memory needs for the weights that it reads.

    They are 0 of "this-machine", which has no datasheet.
    """
    if scenario.cluster.name == THIS_MACHINE:
        return 0.0
    # imported here: --help needs no numpy
    from ladder_sim.costs.memory import weight_bytes

    read_bytes = _active_share(scenario.model) * weight_bytes(scenario)
    return _LEAST_SHARE * read_bytes / scenario.cluster.gpu.hbm_bandwidth_Bps


def _active_share(model: ModelSpec) -> float:
    layers = [kind.feed_forward for kind in model.kinds]
    idle = sum(
        (each.experts - each.experts_per_token) * each.expert.parameters for each in layers if isinstance(each, Moe)
    )
    return 1.0 - idle / model.parameters


def _tokens_per_s(
    cell: Mapping[str, str], configuration: Configuration, ttft_s: float | None, tpot_s: float | None
) -> float:
    """Return the throughput of the whole batch; refuse times of a row that contradict each other."""
    tokens, steps = configuration.batch * configuration.gen, configuration.gen - 1
    given = {"tokens_per_s": _number(cell, "tokens_per_s", _MAX_TOKENS_PER_S)}
    request_s = _number(cell, "request_s", _MAX_SECONDS)
    given["request_s"] = tokens / request_s if request_s else None
    decode_s = None if steps and tpot_s is None else steps * (tpot_s or 0.0)
    if ttft_s is not None and decode_s is not None:
        given["ttft_s and tpot_s"] = tokens / (ttft_s + decode_s)
    rates = {name: rate for name, rate in given.items() if rate is not None}
    if not rates:
        raise UsageError("no time: tokens_per_s and request_s are empty", hint="fill one of them, or ttft_s and tpot_s")
    (first, rate), *others = rates.items()
    for name, other in others:
        if abs(rate / other - 1.0) > MAX_DISAGREEMENT:
            raise UsageError(
                f"{first} makes {rate:g} tokens/s and {name} {other:g}: must agree within {MAX_DISAGREEMENT:.0%}",
                hint="tokens_per_s is batch * gen / request_s, of the whole batch, and request_s is ttft_s and "
                "gen - 1 times tpot_s; leave one of them empty",
            )
    for name, seconds in (("ttft_s", ttft_s), (f"{steps} steps of tpot_s", decode_s)):
        if seconds and seconds * rate / tokens > 1.0 + MAX_DISAGREEMENT:
            raise UsageError(
                f"{name} take {seconds:g} s and the request {tokens / rate:g} s: a part of it must not be longer",
                hint="ttft_s is the prefill and tpot_s one decode step, in seconds",
            )
    return rate


def _number(cell: Mapping[str, str], column: str, maximum: float) -> float | None:
    if column not in cell:
        return None
    try:
        value = float(cell[column])
    except ValueError:
        raise UsageError(f"{column} is {quoted(cell[column])}: must be a number", hint="without unit") from None
    unit = "tokens per second of the whole batch" if column == "tokens_per_s" else "seconds"
    return real(value, column, maximum, hint=f"give {unit}")
