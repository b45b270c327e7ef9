"""The form of a profile file: what each entry may hold, and the way between the file and `CalibrationProfile`.

Imported by `ladder_sim.costs.profile` when a file is read or written, because pydantic is slow to import.
"""

import dataclasses
import difflib
import gzip
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.costs.profile import (
    ELEMENT_BYTES,
    CalibrationProfile,
    FittedFigure,
    IntervalScale,
    ProfileSource,
    ReferenceGpu,
    StackFit,
)
from ladder_sim.costs.roofline import AXES, Kind, grid_roofline_s
from ladder_sim.errors import ProfileError

# Far outside anything measured, near enough that ratios and their logarithms stay finite.
Positive = Annotated[float, Field(gt=1e-30, lt=1e30, allow_inf_nan=False, strict=True)]


Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]


Share = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


Text = Annotated[str, Field(strict=True)]


class Part(BaseModel):
    """A part of a file: nothing in it that is not stated here."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BrokenRuleError(Exception):
    """A rule between entries that the schema's types do not state."""


class FittedPart(Part):
    """As `ladder_sim.costs.profile.FittedFigure`."""

    value: Positive
    default: Positive
    prior_log_sd: Positive
    log_sd: Positive


class ScalePart(Part):
    """As `ladder_sim.costs.profile.IntervalScale`."""

    rate: Positive
    speedup: Positive


class StackFitPart(Part):
    """As `ladder_sim.costs.profile.StackFit`; `draws` holds one list per draw, in the order of `figures`."""

    stack: Text
    base: Text
    runs: Text
    protocol: Text
    rows: Annotated[int, Field(ge=1, strict=True)]
    models: list[Text]
    tps: list[int]
    host_tps: list[int]
    cost: Share
    figures: Annotated[dict[str, FittedPart], Field(min_length=1)]
    draws: Annotated[list[list[Positive]], Field(min_length=2)]
    fitted_scale: ScalePart = Field(validation_alias=AliasChoices("fitted_scale", "near"))
    other_scale: ScalePart = Field(validation_alias=AliasChoices("other_scale", "beyond"))


def decode_stack_fit(part: StackFitPart) -> StackFit:
    """Turn a file's entry into a fit, or raise `BrokenRuleError`."""
    for name in part.figures:
        if name not in Hardware.figures():
            raise BrokenRuleError(f"stack_fit.figures: there is no figure '{name}'")
    for number, row in enumerate(part.draws):
        if len(row) != len(part.figures):
            raise BrokenRuleError(f"stack_fit.draws[{number}] has {len(row)} entries for {len(part.figures)} figures")
    return StackFit(
        stack=part.stack,
        base=part.base,
        runs=part.runs,
        protocol=part.protocol,
        rows=part.rows,
        models=tuple(part.models),
        tps=tuple(part.tps),
        host_tps=tuple(part.host_tps),
        cost=part.cost,
        fitted_scale=IntervalScale(**part.fitted_scale.model_dump()),
        other_scale=IntervalScale(**part.other_scale.model_dump()),
        figures={name: FittedFigure(**figure.model_dump()) for name, figure in part.figures.items()},
        draws=np.array(part.draws),
    )


def encode_stack_fit(stack_fit: StackFit) -> dict[str, Any]:
    """Turn a fit into its file's entry."""
    return {**dataclasses.asdict(stack_fit), "draws": stack_fit.draws.tolist()}


# files of schema version 1 call it "transfer", and its two scales "near" and "beyond"
STACK_FIT = AliasChoices("stack_fit", "transfer")
DTypeName = Literal["bf16", "fp8"]
OpName = Literal["all_reduce", "all_gather", "reduce_scatter"]
Ranks = Annotated[int, Field(ge=2, le=1_000_000)]


class ErrorStatsPart(Part):
    """Errors on measurements left out of a table: rows compared, and quantiles of |t/measured - 1|."""

    rows: Annotated[int, Field(ge=0, strict=True)]
    median: Share
    p90: Share
    max: Share


class TablePart(Part):
    """One measured grid: `seconds` is flat, last axis fastest; null where nothing was measured."""

    axes: dict[str, Annotated[list[Positive], Field(min_length=1)]]
    seconds: list[Positive | None]
    left_out: dict[str, ErrorStatsPart] = Field(default_factory=dict)


class CurvePart(Part):
    """One collective by message size."""

    bytes: Annotated[list[Positive], Field(min_length=1)]
    seconds: Annotated[list[Positive], Field(min_length=1)]
    left_out: dict[str, ErrorStatsPart] = Field(default_factory=dict)


class SourcePart(Part):
    """As `ladder_sim.costs.profile.ProfileSource`."""

    what: Text
    version: Text
    licence: Text
    files: list[Text]
    citation: Text


class ReferencePart(Part):
    """As `ladder_sim.costs.profile.ReferenceGpu`."""

    bf16_flops: Positive
    fp8_flops: Positive
    hbm_bandwidth_Bps: Positive
    kernel_s: Positive


class DerivedDocument(Part):
    """A file that takes its tables from a shipped profile."""

    schema_version: Literal[1, 2]
    name: Text
    base: Text
    created: Text
    stack_fit: StackFitPart = Field(validation_alias=STACK_FIT)


class ProfileDocument(Part):
    """A file with tables of its own."""

    schema_version: Literal[1, 2]
    name: Text
    gpu: Text
    created: Text
    environment: dict[str, Text]
    sources: list[SourcePart]
    reference: ReferencePart
    gemm: dict[DTypeName, TablePart]
    attention_prefill: dict[str, dict[DTypeName, TablePart]]
    attention_decode: dict[str, dict[DTypeName, TablePart]]
    collectives: dict[OpName, dict[str, dict[Ranks, CurvePart]]]
    overlap: dict[str, Share] = Field(default_factory=dict)
    overheads: dict[str, Share] = Field(default_factory=dict)
    stack_fit: StackFitPart | None = Field(None, validation_alias=STACK_FIT)


class _Head(BaseModel):
    schema_version: Annotated[int, Field(strict=True)]
    base: Text | None = None


def decode(document: bytes, *, origin: str) -> CalibrationProfile:
    """Turn a profile's JSON text into a profile.

    Parameters
    ----------
    document
        UTF-8 JSON.
    origin
        What an error calls it, e.g. "profile 'a.json'".

    Raises
    ------
    ProfileError
        If it is not JSON, or breaks a rule; names the entry.
    """
    try:
        head = _Head.model_validate_json(document)
        version = head.schema_version
        if version > SCHEMA_VERSION:
            raise ProfileError(
                f"{origin} has schema_version {version}; this ladder-sim reads up to {SCHEMA_VERSION}",
                hint="it was written by a newer ladder-sim; upgrade",
            )
        derived = DerivedDocument.model_validate_json(document) if head.base is not None else None
        parsed = ProfileDocument.model_validate_json(document) if derived is None else None
    except ValidationError as error:
        raise _explained(error, origin) from None
    try:
        if parsed is not None:
            return _profile(parsed, ReferenceGpu(**parsed.reference.model_dump()))
        if derived is None or derived.base not in shipped_profiles():
            raise BrokenRuleError(f"base is {head.base!r}; it must be the name of a shipped profile")
        return _derived(derived)
    except BrokenRuleError as broken:
        raise ProfileError(f"{origin}: {broken}", hint="re-create it; it was edited or damaged") from None


def encode(profile: CalibrationProfile) -> bytes:
    """Turn a profile into the JSON text of its file, and make sure that it can be read again."""
    fitted = {"stack_fit": encode_stack_fit(profile.stack_fit)} if profile.stack_fit else {}
    document = {
        "schema_version": SCHEMA_VERSION,
        "name": profile.name,
        "gpu": profile.gpu,
        "created": profile.created,
        "environment": dict(profile.environment),
        "sources": [
            {"what": s.what, "version": s.version, "licence": s.licence, "files": list(s.files), "citation": s.citation}
            for s in profile.sources
        ],
        "reference": {
            "bf16_flops": profile.reference.bf16_flops,
            "fp8_flops": profile.reference.fp8_flops,
            "hbm_bandwidth_Bps": profile.reference.hbm_bandwidth_Bps,
            "kernel_s": profile.reference.kernel_s,
        },
        "gemm": _table_entries(profile.gemm),
        "attention_prefill": {kernel: _table_entries(tables) for kernel, tables in profile.attention_prefill.items()},
        "attention_decode": {kernel: _table_entries(tables) for kernel, tables in profile.attention_decode.items()},
        "collectives": {
            op: {
                algorithm: {str(ranks): _curve_entry(curve) for ranks, curve in curves.items()}
                for algorithm, curves in algorithms.items()
            }
            for op, algorithms in profile.collectives.items()
        },
        "overlap": dict(profile.overlap),
        "overheads": dict(profile.overheads),
        **fitted,
    }
    if profile.base:
        named = ("schema_version", "name", "created")
        document = {**{name: document[name] for name in named}, "base": profile.base, **fitted}
    text = _json(document)
    decode(text, origin=f"profile '{profile.name}'")
    return text


def _profile(parsed: ProfileDocument, reference: ReferenceGpu) -> CalibrationProfile:
    def tables(kind: Kind, parts: Mapping[DTypeName, TablePart], where: str) -> dict[str, RatioTable]:
        return {d: _table(part, kind, d, reference, f"{where}.{d}") for d, part in parts.items()}

    return CalibrationProfile(
        name=parsed.name,
        gpu=parsed.gpu,
        created=parsed.created,
        environment=parsed.environment,
        sources=tuple(
            ProfileSource(what=s.what, version=s.version, licence=s.licence, files=tuple(s.files), citation=s.citation)
            for s in parsed.sources
        ),
        reference=reference,
        gemm=tables("gemm", parsed.gemm, "gemm"),
        attention_prefill={
            kernel: tables("attention_prefill", parts, f"attention_prefill.{kernel}")
            for kernel, parts in parsed.attention_prefill.items()
        },
        attention_decode={
            kernel: tables("attention_decode", parts, f"attention_decode.{kernel}")
            for kernel, parts in parsed.attention_decode.items()
        },
        collectives={
            op: {
                algorithm: {
                    ranks: _curve(part, f"collectives.{op}.{algorithm}.{ranks}") for ranks, part in parts.items()
                }
                for algorithm, parts in algorithms.items()
            }
            for op, algorithms in parsed.collectives.items()
        },
        overlap=parsed.overlap,
        overheads=parsed.overheads,
        stack_fit=decode_stack_fit(parsed.stack_fit) if parsed.stack_fit else None,
    )


def _derived(parsed: DerivedDocument) -> CalibrationProfile:
    return replace(
        load_profile(parsed.base),
        name=parsed.name,
        base=parsed.base,
        created=parsed.created,
        stack_fit=decode_stack_fit(parsed.stack_fit),
    )


def _table(part: TablePart, kind: Kind, dtype: str, reference: ReferenceGpu, where: str) -> RatioTable:
    if tuple(part.axes) != AXES[kind]:
        raise BrokenRuleError(f"{where}.axes is {', '.join(part.axes)}; it must be {', '.join(AXES[kind])}")
    axes = {name: _increasing(values, f"{where}.axes.{name}") for name, values in part.axes.items()}
    shape = tuple(len(values) for values in axes.values())
    if len(part.seconds) != np.prod(shape, dtype=float):
        raise BrokenRuleError(
            f"{where}.seconds has {len(part.seconds)} entries; its axes make {' x '.join(map(str, shape))}"
        )
    seconds = np.array([np.nan if value is None else value for value in part.seconds]).reshape(shape)
    if np.isnan(seconds).all():
        raise BrokenRuleError(f"{where}.seconds holds no measurement")
    roofline_s = grid_roofline_s(
        kind,
        dict(zip(axes, np.ix_(*axes.values()), strict=True)),
        element_bytes=ELEMENT_BYTES[dtype],
        flops_per_s=reference.peak_flops(dtype),
        bandwidth_Bps=reference.hbm_bandwidth_Bps,
        kernel_s=reference.kernel_s,
    )
    return RatioTable.from_seconds(axes, seconds, roofline_s, _stats(part.left_out))


def _curve(part: CurvePart, where: str) -> Curve:
    if len(part.bytes) != len(part.seconds):
        raise BrokenRuleError(f"{where} has {len(part.bytes)} bytes but {len(part.seconds)} seconds")
    size_bytes = _increasing(part.bytes, f"{where}.bytes")
    return Curve(size_bytes=size_bytes, seconds=np.array(part.seconds), left_out=_stats(part.left_out))


def _increasing(values: list[float], where: str) -> Any:
    array = np.array(values)
    falls = np.flatnonzero(np.diff(array) <= 0)
    if falls.size:
        i = int(falls[0]) + 1
        raise BrokenRuleError(f"{where}[{i}] is {values[i]:g} after {values[i - 1]:g}; values must increase")
    return array


def _stats(parts: Mapping[str, ErrorStatsPart]) -> dict[str, ErrorStats]:
    return {
        name: ErrorStats(rows=part.rows, median=part.median, p90=part.p90, max=part.max) for name, part in parts.items()
    }


def _table_entries(tables: Mapping[str, RatioTable]) -> dict[str, Any]:
    return {
        dtype: {
            "axes": {name: _numbers(values) for name, values in zip(table.names, table.axes, strict=True)},
            "seconds": _numbers(table.seconds),
            "left_out": _stats_entry(table.left_out),
        }
        for dtype, table in tables.items()
    }


def _curve_entry(curve: Curve) -> dict[str, Any]:
    return {
        "bytes": _numbers(curve.size_bytes),
        "seconds": _numbers(curve.seconds),
        "left_out": _stats_entry(curve.left_out),
    }


def _stats_entry(left_out: Mapping[str, ErrorStats]) -> dict[str, Any]:
    return {name: {"rows": s.rows, "median": s.median, "p90": s.p90, "max": s.max} for name, s in left_out.items()}


def _numbers(values: Any) -> list[float | int | None]:
    """Flat list of JSON numbers: whole ones without a fraction, NaN (not measured) as null."""
    flat = np.asarray(values, np.float64).ravel().tolist()
    return [None if x != x else int(x) if abs(x) < 2**53 and x == int(x) else x for x in flat]


def _json(document: Any) -> bytes:
    import json

    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _explained(error: ValidationError, origin: str) -> ProfileError:
    """First broken rule in this project's words: origin, entry, rule."""
    first = error.errors(include_url=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"] if part != "[key]")
    where = where.lstrip(".")
    if first["type"] == "json_invalid":
        return ProfileError(f"{origin} is not JSON: {first['msg']}", hint="it is cut short, damaged or no profile")
    if not where:
        return ProfileError(f"{origin} is not a profile: its top level must be a JSON object")
    if first["type"] == "missing":
        return ProfileError(f"{origin} lacks '{where}'", hint="re-create it; it was edited, or is no profile")
    given = repr(first["input"])
    given = given if len(given) < 40 else given[:37] + "..."
    rules = {"greater_than": "must be positive", "extra_forbidden": "there is no such entry"}
    message = rules.get(first["type"]) or first["msg"].replace("Input should be", "must be")
    return ProfileError(f"{origin}: {where} is {given}; {message}", hint="re-create it; it was edited or damaged")


SCHEMA_VERSION = 2


SUFFIX = ".json.gz"


# what shipped profiles are called
_NAME = re.compile(r"[a-z0-9-]+")


# an unpacked profile beyond this is no profile: shipped ones unpack to about 1 MB
MAX_DOCUMENT_BYTES = 64 * 2**20


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    folder = resources.files("ladder_sim.costs").joinpath("profiles")
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX))


def load_profile(name_or_path: str | os.PathLike[str]) -> CalibrationProfile:
    """Read a profile, and keep it: the same unchanged file is read once.

    Parameters
    ----------
    name_or_path
        Name of a shipped profile, or path of a ``.json.gz`` or ``.json`` file.

    Raises
    ------
    ProfileError
        If there is no such file, or it is not a valid profile.

    Examples
    --------
    >>> profile = load_profile("h100-sxm")
    >>> ratio, in_range = profile.gemm["bf16"].ratio(m=1, n=7168, k=8192)
    >>> bool(in_range)
    True
    """
    path = _find(name_or_path)
    try:
        status = path.stat()
        return _load(path if path.is_absolute() else path.resolve(), status.st_mtime_ns, status.st_size)
    except (OSError, RuntimeError) as error:
        raise ProfileError(f"profile '{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from error


def save_profile(profile: CalibrationProfile, path: str | os.PathLike[str]) -> None:
    """Write `profile`: gzipped unless the name ends in ``.json``, the same bytes for the same profile.

    Raises
    ------
    ProfileError
        If the profile breaks a rule of its schema, or the file cannot be written.
    """
    document = encode(profile)
    target = Path(path)
    try:
        # no time stamp and no file name inside, so that equal profiles are equal files
        target.write_bytes(document if target.suffix == ".json" else gzip.compress(document, 9, mtime=0))
    except OSError as error:
        raise ProfileError(f"profile '{target}' cannot be written: {error.strerror or error}") from error


def _find(name_or_path: str | os.PathLike[str]) -> Path:
    text = os.fspath(name_or_path)
    own = _shipped_file(text)
    if own is not None:
        return own
    shipped = shipped_profiles()
    if not text or "\0" in text:
        raise ProfileError(f"no profile is called {text!r}", hint=f"shipped profiles: {', '.join(shipped) or 'none'}")
    path = Path(text)
    if not path.is_file():
        near = difflib.get_close_matches(text.lower(), shipped, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"shipped profiles: {', '.join(shipped) or 'none'}"
        raise ProfileError(f"no shipped profile and no file is called '{text}'", hint=hint)
    return path


@lru_cache(maxsize=32)
def _shipped_file(name: str) -> Path | None:
    """The file of a profile that comes with the package."""
    if not _NAME.fullmatch(name):
        return None
    file = Path(str(resources.files("ladder_sim.costs").joinpath("profiles", name + SUFFIX)))
    return file.resolve() if file.is_file() else None


@lru_cache(maxsize=32)
def _load(path: Path, mtime_ns: int, size_bytes: int) -> CalibrationProfile:
    """Read the file as it was at `mtime_ns`: a file that is rewritten is read again."""
    return decode(_unpacked(path), origin=f"profile '{path}'")


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not zipped:
            document = file.read(MAX_DOCUMENT_BYTES + 1)
        else:
            try:
                with gzip.GzipFile(fileobj=file) as stream:
                    document = stream.read(MAX_DOCUMENT_BYTES + 1)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                hint = "copy or create it again; it is cut short or damaged"
                raise ProfileError(f"profile '{path}' is not a whole gzip file: {error}", hint=hint) from error
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ProfileError(f"profile '{path}' unpacks to more than {MAX_DOCUMENT_BYTES // 2**20} MiB")
    return document
