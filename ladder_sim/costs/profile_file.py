"""Profile files: their entries, reading, writing, and those that come with the package."""

import dataclasses
import gzip
import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ladder_sim.costs.estimate import PARAMETERS
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.profile import (
    ATTENTION,
    CalibrationProfile,
    CollectiveName,
    MoeTables,
    Positive,
    ProfileSource,
    StackFit,
)
from ladder_sim.costs.table_parts import (
    BrokenRuleError,
    CurvePart,
    ExpertsTablePart,
    FormatName,
    Head,
    InPlacePart,
    Part,
    Ranks,
    TablePart,
    curve,
    entry,
    in_place,
    in_place_entry,
    read_head,
    refused,
    table,
)
from ladder_sim.errors import LadderSimError, ProfileError, UnknownNameError
from ladder_sim.hf.quantization import KvDType
from ladder_sim.kernels import Gpu, Kind
from ladder_sim.specs import catalog
from ladder_sim.specs.stack import Sampling
from ladder_sim.system.files import Schema, read_bytes, stamp, write_file

# 3: a profile of a stack may hold what differs from its GPU's; 4: contention is steps through memory
SCHEMA = Schema(version=4, oldest=3, stale="it is of ladder-sim 0.1: measure and fit it again")
SUFFIX = ".json.gz"
# next to a profile's file, of files of the same names with what models with experts need
MOE_FOLDER = "moe"
# a larger document is not a profile: shipped ones unpack to about 1 MB
MAX_DOCUMENT_BYTES = 64 * 2**20
# in errors of files that are none
_WHAT = "a profile, which `ladder-sim calibrate fit` makes of samples"
_SHIPPED = Path(__file__).parent / "profiles"
_SHIPPED_NAME = re.compile(r"[a-z0-9-]+(\.[0-9]+)?")
# entries that are left out where there is nothing in them
_OPTIONAL = ("stack_fit", "sampling", "experts", "in_place")
# entries of a derived profile that add to its base's
_SHARED = ("environment", "sources", "gemm", "attention_prefill", "attention_decode", "collectives")
# a fit's figure in files of earlier versions
_OLD_FIGURES = {b'"host.latency_s"': b'"host.allreduce_floor_s"'}

Share = Annotated[float, Field(ge=0)]


class ReferencePart(Part):
    """A `Gpu`."""

    bf16_flops: Positive
    fp8_flops: Positive
    fp4_flops: Positive | None = None
    """FLOP/s of fp4 tensor cores; None in files made before the field existed: the cluster's figure holds."""
    hbm_bandwidth_Bps: Positive
    kernel_s: Positive


class DerivedDocument(Part):
    """A file with what differs from a shipped profile: tables, curves, a fit."""

    schema_version: Literal[3, 4]
    name: str
    created: str
    base: str
    environment: dict[str, str] = Field(default_factory=dict)
    sources: tuple[ProfileSource, ...] = ()
    gemm: dict[FormatName, TablePart] = Field(default_factory=dict)
    attention_prefill: dict[str, dict[KvDType, TablePart]] = Field(default_factory=dict)
    attention_decode: dict[str, dict[KvDType, TablePart]] = Field(default_factory=dict)
    collectives: dict[CollectiveName, dict[str, dict[Ranks, CurvePart]]] = Field(default_factory=dict)
    stack_fit: StackFit | None = None


class ProfileDocument(Part):
    """A file with tables of its own."""

    schema_version: Literal[3, 4]
    name: str
    gpu: str
    created: str
    environment: dict[str, str]
    sources: tuple[ProfileSource, ...]
    reference: ReferencePart
    gemm: dict[FormatName, TablePart]
    attention_prefill: dict[str, dict[KvDType, TablePart]]
    attention_decode: dict[str, dict[KvDType, TablePart]]
    collectives: dict[CollectiveName, dict[str, dict[Ranks, CurvePart]]]
    sampling: dict[Sampling, TablePart] = Field(default_factory=dict)
    experts: list[ExpertsTablePart] = Field(default_factory=list)
    overlap: dict[str, Share] = Field(default_factory=dict)
    overheads: dict[str, Share] = Field(default_factory=dict)
    in_place: InPlacePart | None = None
    stack_fit: StackFit | None = None


class _Head(Head):
    base: Annotated[str, Field(strict=True)] | None = None


def decode(document: bytes, *, origin: str) -> CalibrationProfile:
    """Turn a profile's JSON text into a profile; `origin` is what an error calls it, e.g. "profile 'a.json'".

    Raises ProfileError if it is not JSON, or breaks a rule; names the entry.
    """
    try:
        head = read_head(_Head, document, SCHEMA, origin, ProfileError)
        if head.schema_version < 4:
            document = _without_waves(document)
        for old, name in _OLD_FIGURES.items():
            document = document.replace(old, name)
        if head.base is None:
            return _profile(ProfileDocument.model_validate_json(document))
        return _derived(DerivedDocument.model_validate_json(document))
    except (ValidationError, BrokenRuleError) as broken:
        raise refused(broken, origin, what=_WHAT, error=ProfileError) from None


def encode(profile: CalibrationProfile) -> bytes:
    """Turn a profile into the JSON text of its file, and make sure that it can be read again."""
    form = DerivedDocument if profile.base else ProfileDocument
    experts = [{**key._asdict(), **entry(each)} for key, each in profile.experts.items()]
    in_passes = in_place_entry(profile.in_place) if profile.in_place else None
    own = SCHEMA.marked(gpu=profile.cluster_name, experts=experts, in_place=in_passes)
    entries = {name: own[name] if name in own else entry(getattr(profile, name)) for name in form.model_fields}
    if is_shipped(profile.base):
        base = load_profile(profile.base)
        for name in _SHARED:
            entries[name] = _beyond(entries[name], entry(getattr(base, name)))
    entries = {name: value for name, value in entries.items() if value or name not in _OPTIONAL}
    document = json.dumps(entries, separators=(",", ":"), allow_nan=False).encode()
    decode(document, origin=f"profile '{profile.name}'")
    return document


def _beyond(entries: Any, base: Any) -> Any:
    """Return the entries that a base lacks or has otherwise; a table or a curve is one entry."""
    if isinstance(entries, list):
        return [entry for entry in entries if entry not in base]
    changed = {name: value for name, value in entries.items() if name not in base or base[name] != value}
    return {
        # a table or a curve has seconds
        name: _beyond(value, base[name])
        if name in base and isinstance(value, dict) and "seconds" not in value
        else value
        for name, value in changed.items()
    }


def _without_waves(document: bytes) -> bytes:
    """Return a profile's JSON without parameters of contention that its rule of today does not have."""
    if b'"overlap' not in document:
        return document
    entries = json.loads(document)
    known = {f"overlap.{name}" for name in PARAMETERS}
    overlap, fit = entries.get("overlap"), entries.get("stack_fit")
    if isinstance(overlap, dict):
        entries["overlap"] = {name: value for name, value in overlap.items() if name in PARAMETERS}
    if isinstance(fit, dict) and isinstance(fit.get("figures"), dict) and isinstance(fit.get("draws"), list):
        kept = [name in known or not name.startswith("overlap.") for name in fit["figures"]]
        fit["figures"] = dict(compress(fit["figures"].items(), kept))
        fit["draws"] = [list(compress(draw, kept)) if isinstance(draw, list) else draw for draw in fit["draws"]]
    return json.dumps(entries).encode()


def _profile(parsed: ProfileDocument) -> CalibrationProfile:
    try:
        cluster = catalog.cluster(parsed.gpu)
    except LadderSimError as error:
        raise BrokenRuleError(f"gpu: {error.message}") from None
    if parsed.overheads.get("sustained_rate") == 0.0:
        raise BrokenRuleError("overheads.sustained_rate is 0; must be above 0")
    measured = parsed.reference.model_dump(exclude_none=True)
    reference = dataclasses.replace(Gpu.of(cluster.gpu), **measured)
    same = ("name", "created", "environment", "sources", "overlap", "overheads")
    return CalibrationProfile(
        **{name: getattr(parsed, name) for name in same},
        cluster=cluster,
        cluster_name=parsed.gpu,
        reference=reference,
        **_measured(parsed, reference),
        sampling={
            name: table(part, "sample", name, reference, f"sampling.{name}") for name, part in parsed.sampling.items()
        },
        experts={
            part.key: table(part, "moe", part.key, reference, f"experts[{number}]")
            for number, part in enumerate(parsed.experts)
        },
        in_place=in_place(parsed.in_place) if parsed.in_place else None,
        stack_fit=_checked(parsed.stack_fit) if parsed.stack_fit else None,
    )


def _derived(parsed: DerivedDocument) -> CalibrationProfile:
    if not is_shipped(parsed.base):
        raise BrokenRuleError(f"base is {parsed.base!r}; it must be the name of a shipped profile")
    base = load_profile(parsed.base)
    own = {"environment": parsed.environment, **_measured(parsed, base.reference)}
    over: dict[str, Any] = {name: _over(getattr(base, name), values) for name, values in own.items()}
    return dataclasses.replace(
        base,
        name=parsed.name,
        base=parsed.base,
        root=base.base and base.tables_of,
        created=parsed.created,
        sources=(*base.sources, *parsed.sources),
        **over,
        stack_fit=_checked(parsed.stack_fit) if parsed.stack_fit else None,
        read_moe=partial(_moe_of, parsed.base),
    )


def _moe_of(name: str) -> MoeTables:
    return load_profile(name).moe


def _over(base: Mapping[Any, Any], own: Mapping[Any, Any]) -> Mapping[Any, Any]:
    inner = {
        name: _over(base[name], value) if name in base and isinstance(value, Mapping) else value
        for name, value in own.items()
    }
    return {**base, **inner}


def _measured(parsed: ProfileDocument | DerivedDocument, reference: Gpu) -> dict[str, Any]:
    def tables(kind: Kind, parts: Mapping[Any, TablePart], where: str) -> dict[str, RatioTable]:
        return {dtype: table(part, kind, dtype, reference, f"{where}.{dtype}") for dtype, part in parts.items()}

    phases: tuple[Kind, ...] = ("attention_prefill", "attention_decode")
    kinds: Mapping[tuple[str, str], Kind] = {where: kind for kind, where in ATTENTION.items()}
    return {
        "gemm": tables("gemm", parsed.gemm, "gemm"),
        **{
            phase: {
                kernel: tables(kinds.get((phase, kernel), phase), parts, f"{phase}.{kernel}")
                for kernel, parts in getattr(parsed, phase).items()
            }
            for phase in phases
        },
        "collectives": {
            op: {
                algorithm: {
                    ranks: curve(part, f"collectives.{op}.{algorithm}.{ranks}") for ranks, part in parts.items()
                }
                for algorithm, parts in algorithms.items()
            }
            for op, algorithms in parsed.collectives.items()
        },
    }


def _checked(fit: StackFit) -> StackFit:
    for name in fit.figures:
        if name not in Hardware.figures():
            raise BrokenRuleError(f"stack_fit.figures: there is no figure '{name}'")
    if not fit.figures or len(fit.draws) < 2:
        raise BrokenRuleError("stack_fit must hold one figure or more, and two draws or more")
    for number, values in enumerate(fit.draws):
        if len(values) != len(fit.figures):
            raise BrokenRuleError(f"stack_fit.draws[{number}] has {len(values)} entries for {len(fit.figures)} figures")
    return fit


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that come with the package, sorted."""
    return sorted(file.name.removesuffix(SUFFIX) for file in _SHIPPED.glob(f"*{SUFFIX}"))


@lru_cache(maxsize=256)
def is_shipped(name: str) -> bool:
    """Whether a profile of this name comes with the package."""
    return _SHIPPED_NAME.fullmatch(name) is not None and os.path.isfile(f"{_SHIPPED}/{name}{SUFFIX}")


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
    path = _find(os.fspath(name_or_path))
    moe = moe_file(path)
    try:
        return _load(os.path.abspath(path), stamp(path), stamp(moe) if os.path.isfile(moe) else None)
    except OSError as error:
        raise ProfileError(f"profile '{path}' cannot be read: {error.strerror or error}") from error


def shipped_links(fabric: str) -> CalibrationProfile | None:
    """Return the shipped profile whose in-node collectives were measured on a fabric."""
    for name in catalog.cluster_names():
        cluster = catalog.cluster(name)
        if cluster.intra.fabric == fabric and cluster.profile:
            profile = load_profile(cluster.profile)
            if profile.cluster_name == name:
                return profile
    return None


def shipped_fits() -> list[CalibrationProfile]:
    """Return the shipped profiles in which a stack was fitted to end-to-end runs."""
    names = (catalog.stack(name).profile for name in catalog.stack_names())
    return [load_profile(name) for name in names if name]


def save_profile(profile: CalibrationProfile, path: str | os.PathLike[str]) -> None:
    """Write `profile`: gzipped unless the name ends in ``.json``, the same bytes for the same profile.

    Raises
    ------
    ProfileError
        If the profile breaks a rule of its schema, or the file cannot be written.
    """
    if profile.measurement:
        raise ProfileError(
            f"profile '{profile.name}' holds what a server measured, which no file has",
            hint="keep the measurement, and condition again",
        )
    document = encode(profile)
    target = Path(path)
    # no time stamp and no file name inside, so that equal profiles are equal files
    content = document if target.suffix == ".json" else gzip.compress(document, 9, mtime=0)
    write_file(target, content, error=ProfileError)


def _find(text: str) -> str:
    if is_shipped(text):
        return f"{_SHIPPED}/{text}{SUFFIX}"
    if not os.path.isfile(text):
        hint = UnknownNameError("profile", text, shipped_profiles()).hint
        raise ProfileError(f"no shipped profile and no file is called {text!r}", hint=hint)
    return text


def moe_file(path: str) -> str:
    """Return the path of a profile's second file, which models with experts or latent attention need."""
    return os.path.join(os.path.dirname(path), MOE_FOLDER, os.path.basename(path))


@lru_cache(maxsize=64)
def _load(path: str, written: tuple[int, ...], moe_written: tuple[int, ...] | None) -> CalibrationProfile:
    """Read a profile as it was when its files had these stamps: one that is rewritten is read again."""
    document = read_bytes(Path(path), what="a profile", limit_bytes=MAX_DOCUMENT_BYTES, unpack=True, error=ProfileError)
    profile = decode(document, origin=f"profile '{path}'")
    return (
        profile
        if moe_written is None
        else dataclasses.replace(profile, read_moe=partial(_read_moe, profile, moe_file(path)))
    )


def _read_moe(profile: CalibrationProfile, path: str) -> MoeTables:
    # dense models do not need it
    from ladder_sim.costs.moe_file import read_moe

    return read_moe(path, profile.reference, _moe_of(profile.base) if profile.base else None)
