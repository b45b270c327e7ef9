"""Entries of JSON files as types, what is said of one that breaks a rule, and tables and curves made of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ladder_sim.costs.in_place import InPlace, Wait
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.costs.profile import Positive
from ladder_sim.des.shared import Floats
from ladder_sim.errors import LadderSimError
from ladder_sim.kernels import KERNELS, TABLE_KINDS, Experts, Gpu, Kind, TableOf
from ladder_sim.specs.workload import Imbalance
from ladder_sim.system.files import Schema
from ladder_sim.units import quoted

Error = TypeVar("Error", bound=LadderSimError)


class Part(BaseModel):
    """A part of a file: every entry is stated here or in the dataclass that a field names, and no other is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class BrokenRuleError(Exception):
    """A rule between entries that their types do not state."""


class Head(BaseModel):
    """What a document says before it is known what it holds."""

    # what it may be `Schema.check` says, of every kind of file
    schema_version: Any = 1
    """One without it is of version 1."""


_Head = TypeVar("_Head", bound=Head)


def read_head(kind: type[_Head], document: bytes | str, schema: Schema, origin: str, error: type[Error]) -> _Head:
    """Read the head of a document whose version can be read.

    Raises ValidationError if it is not a JSON object; LadderSimError if its version is another one, or no number:
    `error`.
    """
    head = kind.model_validate_json(document)
    schema.check(head.model_dump(), origin, error=error)
    return head


def refused(broken: ValidationError | BrokenRuleError, origin: str, *, what: str, error: type[Error]) -> Error:
    """Return the error that says origin, entry and rule of the first broken rule; `what` the file should be."""
    damaged = "create it again; it was edited or damaged"
    if isinstance(broken, BrokenRuleError):
        return error(f"{origin}: {broken}", hint=damaged)
    first = broken.errors(include_url=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"] if part != "[key]")
    where = where.lstrip(".")
    if first["type"] == "json_invalid":
        return error(f"{origin} is not JSON: {first['msg']}", hint=f"it is cut short, damaged or not {what}")
    if not where:
        return error(f"{origin} is not {what}: its top level must be a JSON object")
    if first["type"] in ("missing", "missing_keyword_only_argument"):
        return error(f"{origin} lacks '{where}'", hint=f"create it again; it was edited, or is not {what}")
    rules = {
        "greater_than": "must be above 0",
        "extra_forbidden": "there is no such entry",
        "unexpected_keyword_argument": "there is no such entry",
        "string_pattern_mismatch": "must be printable",
    }
    message = rules.get(first["type"]) or first["msg"].replace("Input should be", "must be")
    return error(f"{origin}: {where} is {quoted(first['input'])}; {message}", hint=damaged)


# kernels by name, as files hold them
SHAPES = {kernel.__name__: kernel for kernel in KERNELS}
# `ladder_sim.specs.workload.Format.name`
FormatName = Literal["bf16", "fp8", "fp8-block", "nvfp4", "w4a16", "mxfp4"]
Ranks = Annotated[int, Field(ge=2, le=1_000_000, strict=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class TablePart(Part):
    """A `RatioTable`: `seconds` is flat, last axis fastest; null where nothing was measured."""

    axes: dict[str, Annotated[list[Positive], Field(min_length=1)]]
    seconds: list[Positive | None]
    estimates: list[Positive] = Field(default_factory=list)
    """Times of the points that are null in `seconds`, in their order, made of other measurements; empty: none."""
    left_out: dict[str, ErrorStats] = Field(default_factory=dict)


class ExpertLayer(Part):
    """A layer's routed experts, as `Experts`; an empty format stands for every format and width."""

    format: Literal[FormatName, ""]
    hidden: Count
    width: Count
    experts: Count
    top_k: Count
    imbalance: Imbalance = "power-law-1.01"

    @property
    def key(self) -> Experts:
        return Experts(*(getattr(self, name) for name in Experts._fields))


class ExpertsTablePart(ExpertLayer, TablePart):
    """A layer's routed experts, of a format that was measured, and their `RatioTable`."""

    format: FormatName


class CurvePart(Part):
    """A `Curve`."""

    bytes: Annotated[list[Positive], Field(min_length=1)]
    seconds: Annotated[list[Positive], Field(min_length=1)]
    left_out: dict[str, ErrorStats] = Field(default_factory=dict)


# sizes in files of earlier versions, which follow from the format
_EARLIER = ("element_bytes", "weight_element_bytes", "input_element_bytes", "output_element_bytes")


class KernelPart(Part, extra="allow"):
    """A kernel of real passes: an `OpKey` with the sizes that its shape has, and its time."""

    __pydantic_extra__: dict[str, str | bool | int | float] = Field(init=False)
    kind: str
    shape: str
    seconds: Positive


class WaitPart(Part):
    """A `Wait` for messages of one size."""

    bytes: Positive
    core_share: Annotated[float, Field(ge=0, le=1)]
    slowed: Annotated[float, Field(ge=0)]
    wake_s: Annotated[float, Field(ge=0)]


class InPlacePart(Part):
    """An `InPlace`."""

    element_bytes: Positive
    kernels: Annotated[list[KernelPart], Field(min_length=1)]
    collectives: dict[str, CurvePart]
    waits: list[WaitPart]


def in_place(part: InPlacePart) -> InPlace:
    """Make times of real passes of their entries."""
    kernels = {}
    for number, kernel in enumerate(part.kernels):
        try:
            sizes = {name: size for name, size in (kernel.model_extra or {}).items() if name not in _EARLIER}
            if kernel.kind == "norm":
                # files of earlier versions do not say it
                sizes.setdefault("normalises", True)
            shape = SHAPES[kernel.shape](**sizes)
        except (KeyError, TypeError):
            raise BrokenRuleError(f"in_place.kernels[{number}] has not the sizes of a kernel") from None
        kernels[kernel.kind, shape] = kernel.seconds
    return InPlace(
        element_bytes=part.element_bytes,
        kernels=kernels,
        collectives={kind: curve(each, f"in_place.collectives.{kind}") for kind, each in part.collectives.items()},
        waits={each.bytes: Wait(each.core_share, each.slowed, each.wake_s) for each in part.waits},
    )


def in_place_entry(times: InPlace) -> Any:
    """Return the times of real passes as JSON values."""
    return {
        "element_bytes": times.element_bytes,
        "kernels": [
            {"kind": kind, "shape": type(shape).__name__, **entry(shape), "seconds": seconds}
            for (kind, shape), seconds in times.kernels.items()
        ],
        "collectives": entry(times.collectives),
        "waits": [{"bytes": size, **wait._asdict()} for size, wait in times.waits.items()],
    }


def table(part: TablePart, kind: Kind, table_of: TableOf, reference: Gpu, where: str) -> RatioTable:
    """Make a table of its entries; `where` they are is for the message of a BrokenRuleError."""
    axes = grid(part.axes, kind, part.seconds, where, "seconds")
    seconds = np.array(part.seconds, np.float64).reshape([len(values) for values in axes.values()])
    estimates = None
    if part.estimates:
        estimates = np.full_like(seconds, np.nan)
        if len(part.estimates) != np.isnan(seconds).sum():
            raise BrokenRuleError(f"{where} has {len(part.estimates)} estimates; {np.isnan(seconds).sum()} are null")
        estimates[np.isnan(seconds)] = part.estimates
    elif np.isnan(seconds).all():
        raise BrokenRuleError(f"{where}.seconds holds no measurement")
    ideal_s = ideal_time_s(axes, kind, table_of, reference)
    return RatioTable.from_seconds(axes, seconds, ideal_s, part.left_out, estimates)


def grid(
    axes: Mapping[str, list[float]], kind: Kind, entries: Sequence[object], where: str, name: str
) -> dict[str, Floats]:
    """Return the axes of a table of `kind`; its `entries`, called `name`, must be as many as the axes make."""
    if tuple(axes) != TABLE_KINDS[kind].axes:
        raise BrokenRuleError(f"{where}.axes is {', '.join(axes)}; it must be {', '.join(TABLE_KINDS[kind].axes)}")
    arrays = {name: _increasing(values, f"{where}.axes.{name}") for name, values in axes.items()}
    shape = tuple(len(values) for values in arrays.values())
    if len(entries) != np.prod(shape, dtype=float):
        raise BrokenRuleError(f"{where}.{name} has {len(entries)} entries; its axes make {' x '.join(map(str, shape))}")
    return arrays


def ideal_time_s(axes: Mapping[str, Floats], kind: Kind, table_of: TableOf, reference: Gpu) -> Floats:
    """Return the ideal times on a grid, in seconds."""
    points = dict(zip(axes, np.ix_(*axes.values()), strict=True))
    return TABLE_KINDS[kind].shape(table_of, points).roofline_s(reference)


def curve(part: CurvePart, where: str) -> Curve:
    """Make a curve of its entries; `where` they are is for the message of a BrokenRuleError."""
    if len(part.bytes) != len(part.seconds):
        raise BrokenRuleError(f"{where} has {len(part.bytes)} bytes but {len(part.seconds)} seconds")
    size_bytes = _increasing(part.bytes, f"{where}.bytes")
    return Curve(size_bytes=size_bytes, seconds=np.array(part.seconds), left_out=part.left_out)


def _increasing(values: list[float], where: str) -> Floats:
    array = np.array(values, np.float64)
    falls = np.flatnonzero(np.diff(array) <= 0)
    if falls.size:
        i = int(falls[0]) + 1
        raise BrokenRuleError(f"{where}[{i}] is {values[i]:g} after {values[i - 1]:g}; values must increase")
    return array


def entry(value: Any) -> Any:
    """Return a part of a profile as JSON values."""
    if isinstance(value, RatioTable):
        axes = dict(zip(value.names, value.axes, strict=True))
        made = {} if value.estimates is None else {"estimates": value.estimates[np.isnan(value.seconds)]}
        return entry({"axes": axes, "seconds": value.seconds, **made, "left_out": value.left_out})
    if isinstance(value, Curve):
        return entry({"bytes": value.size_bytes, "seconds": value.seconds, "left_out": value.left_out})
    if isinstance(value, np.ndarray):
        # whole numbers without a fraction, NaN (not measured) as null
        flat = value.ravel().tolist()
        return [None if x != x else int(x) if abs(x) < 2**53 and x == int(x) else x for x in flat]
    if isinstance(value, Mapping):
        return {str(key): entry(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [entry(inner) for inner in value]
    if dataclasses.is_dataclass(value):
        return {field.name: entry(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value
