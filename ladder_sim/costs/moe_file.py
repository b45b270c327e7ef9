"""Files of what models with experts, latent or sparse attention or states need: the folder ``moe`` next to profiles.

They are files of their own because dense models need nothing of them. Times of experts are in hundredths: of the
roofline in a GPU's file, which holds those of the median engine; of that file's in an engine's, and at most 100.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from ladder_sim.costs.experts import over
from ladder_sim.costs.lookup import ErrorStats, RatioTable
from ladder_sim.costs.profile import MOE_KINDS, MoeTables, Positive, ProfileSource
from ladder_sim.costs.table_parts import (
    BrokenRuleError,
    CurvePart,
    ExpertLayer,
    FormatName,
    Head,
    Part,
    Ranks,
    TablePart,
    curve,
    grid,
    ideal_time_s,
    read_head,
    refused,
    table,
)
from ladder_sim.des.shared import Floats
from ladder_sim.errors import ProfileError
from ladder_sim.hf.mixer import Rule
from ladder_sim.hf.quantization import KvDType
from ladder_sim.kernels import Experts, Gpu, Kind
from ladder_sim.system.files import Schema, read_bytes

SCHEMA = Schema()
# a larger document is not such a file: shipped ones unpack to about 0.1 MB
MAX_DOCUMENT_BYTES = 16 * 2**20
# form of the entries, heads of the index, type of the KV cache
SparseName = Annotated[str, Field(pattern=r"^(latent|heads)-\d{1,4}-(bf16|fp8)$")]


class ExpertsPart(ExpertLayer):
    """Experts and their table."""

    axes: dict[str, Annotated[list[Positive], Field(min_length=1)]]
    percent: list[Annotated[int, Field(ge=1)] | None]
    """Roofline share in percent; with an imbalance that was not measured for every layer, the share of the time with
    the measured one. Last axis fastest; null where nothing was measured."""


class SharePart(ExpertLayer):
    """Experts of an engine, on the grid of the GPU's table."""

    percent: list[Annotated[int, Field(ge=1, le=100)] | None]
    """Percent of the times in the GPU's table; null where the engine was not measured."""


class MoeDocument(Part):
    """The file."""

    schema_version: Literal[1] = 1
    name: str
    created: str
    sources: tuple[ProfileSource, ...]
    experts: list[ExpertsPart] = Field(default_factory=list)
    shares: list[SharePart] = Field(default_factory=list)
    mla_prefill: dict[KvDType, TablePart] = Field(default_factory=dict)
    mla_decode: dict[KvDType, TablePart] = Field(default_factory=dict)
    bmm: dict[FormatName, TablePart] = Field(default_factory=dict)
    sparse_prefill: dict[SparseName, TablePart] = Field(default_factory=dict)
    sparse_decode: dict[SparseName, TablePart] = Field(default_factory=dict)
    state_prefill: dict[Rule, TablePart] = Field(default_factory=dict)
    state_decode: dict[Rule, TablePart] = Field(default_factory=dict)
    convolution_prefill: dict[Rule, TablePart] = Field(default_factory=dict)
    convolution_decode: dict[Rule, TablePart] = Field(default_factory=dict)
    collectives: dict[Literal["dispatch", "combine"], dict[str, dict[Ranks, CurvePart]]] = Field(default_factory=dict)
    left_out: dict[str, dict[str, ErrorStats]] = Field(default_factory=dict)


def read_moe(path: str, reference: Gpu, base: MoeTables | None) -> MoeTables:
    """Read a gzipped file, of an engine on the `base` of its GPU; None: it is the GPU's, with figures of `reference`.

    Raises ProfileError if it cannot be read or breaks a rule; names the entry.
    """
    what = "what a profile holds of models with experts"
    document = read_bytes(Path(path), what=what, limit_bytes=MAX_DOCUMENT_BYTES, unpack=True, error=ProfileError)
    try:
        read_head(Head, document, SCHEMA, f"'{path}'", ProfileError)
        return _tables(MoeDocument.model_validate_json(document), reference, base)
    except (ValidationError, BrokenRuleError) as broken:
        raise refused(broken, f"'{path}'", what=what, error=ProfileError) from None


def _tables(parsed: MoeDocument, reference: Gpu, base: MoeTables | None) -> MoeTables:
    experts: dict[Experts, RatioTable] = {}
    for number, part in enumerate(parsed.experts):
        experts[part.key] = _experts(part, reference, f"experts[{number}]")
    shares = {part.key: _share(part, base, f"shares[{number}]") for number, part in enumerate(parsed.shares)}
    tables: dict[Kind, dict[str, RatioTable]] = {
        kind: {of: table(part, kind, of, reference, f"{kind}.{of}") for of, part in getattr(parsed, kind).items()}
        for kind in MOE_KINDS
    }
    own = MoeTables(
        experts=experts,
        tables=tables,
        collectives={
            op: {
                kernel: {ranks: curve(part, f"collectives.{op}.{kernel}.{ranks}") for ranks, part in parts.items()}
                for kernel, parts in kernels.items()
            }
            for op, kernels in parsed.collectives.items()
        },
        left_out=parsed.left_out,
        sources=parsed.sources,
    )
    if base is None:
        return own
    return dataclasses.replace(
        own,
        experts={
            key: others if key.format == "" else over(shares.get(key), others) for key, others in base.experts.items()
        },
        tables={
            kind: {**{of: over(None, each) for of, each in base.tables.get(kind, {}).items()}, **tables[kind]}
            for kind in MOE_KINDS
        },
        left_out={**base.left_out, **own.left_out},
        sources=(*base.sources, *own.sources),
    )


def _experts(part: ExpertsPart, reference: Gpu, where: str) -> RatioTable:
    axes = grid(part.axes, "moe", part.percent, where, "percent")
    ratio = _ratio(part.percent, tuple(len(values) for values in axes.values()), where)
    # a factor has no roofline
    ideal_s = ideal_time_s(axes, "moe", part.key, reference) if part.format else 1.0
    return RatioTable.from_seconds(axes, ratio * ideal_s, ideal_s)


def _ratio(percent: list[int | None], shape: tuple[int, ...], where: str) -> Floats:
    ratio = np.array(percent, np.float64).reshape(shape) / 100.0
    if np.isnan(ratio).all():
        raise BrokenRuleError(f"{where}.percent holds no measurement")
    return ratio


def _share(part: SharePart, base: MoeTables | None, where: str) -> RatioTable:
    others = base.experts.get(part.key) if base else None
    if others is None:
        raise BrokenRuleError(f"{where}: the file of its GPU has no such experts")
    if len(part.percent) != others.seconds.size:
        raise BrokenRuleError(
            f"{where}.percent has {len(part.percent)} entries; that of its GPU has {others.seconds.size}"
        )
    share = _ratio(part.percent, others.seconds.shape, where)
    return dataclasses.replace(
        others, seconds=others.seconds * share, log_ratio=others.log_ratio + np.log(share), left_out={}
    )
