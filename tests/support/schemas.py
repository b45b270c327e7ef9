"""The JSON Schemas in docs/schemas, of files that are read and written, and whether a document is as they say.

Those of files that are read by types are made from these: ``python -m tests.support.schemas`` writes them.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from jsonschema import Draft202012Validator
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

import ladder_sim.cli.doctor
import ladder_sim.costs.collectives.fabrics
import ladder_sim.serving.engine.measured_steps
import ladder_sim_calibration.fit.samples
from ladder_sim.costs.moe_file import MoeDocument
from ladder_sim.costs.profile_file import DerivedDocument, ProfileDocument
from ladder_sim.report.settings import value_schema
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec, GpuSpec, LinkTier
from ladder_sim.specs.stack import AllReduce, GpuLimits, OwnAllReduce, StackSpec
from ladder_sim.system.files import KEY, Schema
from ladder_sim.units import short_name
from ladder_sim.values import field_kinds, limits_of, meanings, settable_fields
from ladder_sim_calibration.fit.samples import Sample
from tests.conftest import REPO
from tests.support.answers import answers

FOLDER = REPO / "docs" / "schemas"
# columns of the files
_WIDTH = 120
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# text without control characters, as pydantic and as every validator writes it
_PRINTABLE = (json.dumps(r"^\P{C}*$"), json.dumps(r"^[^\x00-\x1f\x7f-\x9f]*$"))


def check(name: str, document: Any) -> None:
    """Require that a document is as a schema of docs/schemas says, and JSON, which has finite numbers only."""
    json.dumps(document, default=str, allow_nan=False)
    validator(name).validate(document)


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Of docs/schemas/NAME.json."""
    return Draft202012Validator(json.loads((FOLDER / f"{name}.json").read_text("utf-8")))


def made() -> dict[str, dict[str, Any]]:
    """The schemas that are made from types, by name."""
    text = {"type": "string"}
    numbers = {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 2}
    count = {"type": "integer", "minimum": 1}
    fabric = {"cluster": text, "nodes": count, "ranks_per_node": count, "bytes": numbers, "time_us": numbers}
    link = _link()
    entries = {"type": "object"}
    said = {"environment": entries, "variables": entries, "links": text}
    header = {"type": "object", "required": [KEY, "environment"], "properties": said}
    states = {"type": "array", "items": entries}
    # of the GPUs of rank 0's node
    when = {"type": "object", "properties": {"before": states, "after": states}, "additionalProperties": False}
    between = {"type": "object", "required": ["gpus"], "properties": {"gpus": when}, "additionalProperties": False}
    return {
        "profile": _of(
            "A profile (.json.gz): what was measured on a machine",
            typed(ProfileDocument | DerivedDocument),
        ),
        "profile-moe": _of("What a profile holds of models with experts", typed(MoeDocument)),
        "samples": _of(
            "A line of a samples file (.jsonl): the machine in the first, a measured op in the others, or between them "
            "the states of the GPUs before or after a run",
            {
                "anyOf": [
                    {**header, **_marked(ladder_sim_calibration.fit.samples.SCHEMA, header)},
                    between,
                    typed(Sample),
                ]
            },
        ),
        "doctor": _of(
            "The answer of `ladder-sim doctor --json`",
            _marked(ladder_sim.cli.doctor.SCHEMA, typed(ladder_sim.cli.doctor.Report)),
        ),
        "steps": _of(
            "Times of steps (.toml), of `ladder-sim calibrate fit-steps`",
            _marked(ladder_sim.serving.engine.measured_steps.SCHEMA, table(MeasuredSteps)),
        ),
        "fabric": _of(
            "An all-reduce between nodes (.toml)",
            _marked(
                ladder_sim.costs.collectives.fabrics.SCHEMA,
                {"type": "object", "properties": {**fabric, "source": text}, "required": [*fabric, "source"]},
            ),
        ),
        "cluster": _of(
            "A cluster (.toml)",
            _marked(
                catalog.CLUSTER_SCHEMA,
                table(
                    ClusterSpec,
                    optional=("name",),
                    own={"gpu": table(GpuSpec, optional=("fp4_flops",)), "intra": link, "inter": link, "host": link},
                ),
            ),
        ),
        "stack": _of("A stack (.toml)", _marked(catalog.STACK_SCHEMA, _stack())),
        **{name: _of(schema["title"], schema) for name, schema in answers().items()},
    }


class _Untitled(GenerateJsonSchema):
    """Without titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never."""
        return False


def typed(kind: Any) -> dict[str, Any]:
    """Of what pydantic reads, with the docstrings of fields."""
    schema = json.loads(json.dumps(TypeAdapter(kind).json_schema(schema_generator=_Untitled)).replace(*_PRINTABLE))
    definitions = schema.get("$defs", {})
    for each in _classes(kind):
        part = definitions.get(each.__name__, schema if schema.get("title") == each.__name__ else {})
        for name, meaning in meanings(each).items():
            if name in part.get("properties", {}):
                part["properties"][name]["description"] = meaning
    return schema


def _classes(kind: Any) -> Iterator[type]:
    """Of a document, with those of its parts."""
    if isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
        yield kind
        for each in get_type_hints(kind).values():
            yield from _classes(each)
    for part in get_args(kind):
        yield from _classes(part)


def table(
    spec: type, *, given: tuple[str, ...] = (), optional: tuple[str, ...] = (), own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Of a TOML table that holds a spec's fields: numbers by names with a unit, text with a unit by either name.

    Parameters
    ----------
    spec
        Dataclass.
    given
        Fields that the table may not hold.
    optional
        Fields that the table may leave out, in addition to those with a default.
    own
        Fields that are no single values.
    """
    properties: dict[str, Any] = dict(own or {})
    required: list[dict[str, Any]] = [{"required": [name]} for name in properties]
    for field in dataclasses.fields(spec):
        kind = settable_fields(spec).get(field.name)
        if kind is None or field.name in (*given, *properties):
            continue
        limits, about = limits_of(field_kinds(spec)[field.name]), {"description": meanings(spec).get(field.name, "")}
        value = value_schema(kind, limits)
        quantity = {"type": "string", "description": f"{about['description']} With its unit."}
        properties[field.name] = {"anyOf": [value, {"type": "string"}], **about} if limits else {**value, **about}
        names = [field.name]
        if limits and short_name(field.name) != field.name:
            properties[short_name(field.name)] = quantity
            names.append(short_name(field.name))
        if field.default is dataclasses.MISSING and field.name not in optional:
            required.append({"anyOf": [{"required": [name]} for name in names]})
    whole = {"type": "object", "properties": properties, "additionalProperties": False}
    return whole | ({"allOf": required} if required else {})


def _link() -> dict[str, Any]:
    """Of a tier, whose floor may be stated, by its former name too, or the latency of its hops."""
    link = table(LinkTier, given=("name",), optional=("allreduce_floor_s",))
    properties = link["properties"]
    former = {f"latency{unit}": properties[f"allreduce_floor{unit}"] for unit in ("_s", "")}
    link["properties"] = {**properties, **former}
    floors = [name for name in link["properties"] if name.startswith(("allreduce_floor", "hop_latency", "latency"))]
    link["allOf"].append({"anyOf": [{"required": [name]} for name in floors]})
    return link


def _stack() -> dict[str, Any]:
    size = {"type": "string", "pattern": "^<?[0-9]"}
    rule = {
        "type": "object",
        "properties": {
            "gpus": {"type": "integer", "minimum": 0},
            "compute_capability": {"type": "number", "minimum": 0},
            "nvlink_domain": {"type": "integer", "minimum": 0},
            **dict.fromkeys(get_args(AllReduce)[:-1], size),
        },
        "additionalProperties": False,
    }
    rules = {"type": "array", "items": rule}
    versions = {
        "type": "object",
        "properties": {
            "oldest": {"type": "string"},
            "newest": {"type": "string"},
            "source": {"type": "string"},
            "before": {"type": "object", "additionalProperties": {"type": "object"}},
        },
        "additionalProperties": False,
    }
    fields = table(StackSpec, optional=("name",))
    own_allreduce = table(OwnAllReduce)
    own_allreduce["properties"] |= {"rules": rules, "fused_norm_rules": rules}
    limits = {"type": "array", "items": table(GpuLimits)}
    own = {"own_allreduce": own_allreduce, "gpu_limits": limits, "versions": versions}
    fields["properties"] |= own
    return fields


def _marked(schema: Schema, document: dict[str, Any]) -> dict[str, Any]:
    """With the version."""
    version = {KEY: {"type": "integer", "minimum": schema.oldest, "maximum": schema.version}}
    return {**document, "properties": {**version, **document["properties"]}}


def _of(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": _DIALECT, "title": title, **{name: each for name, each in schema.items() if name != "title"}}


def text_of(schema: Mapping[str, Any]) -> str:
    """A schema as its file holds it: what fits a line is on one."""
    return _lines(schema, "", 0) + "\n"


def _lines(part: Any, indent: str, taken: int) -> str:
    """A part of a schema, of whose first line some columns are taken."""
    whole = json.dumps(part, ensure_ascii=False)
    if not isinstance(part, dict | list) or not part or len(indent) + taken + len(whole) < _WIDTH:
        return whole
    further = f"{indent}  "
    keys = [f"{json.dumps(name)}: " for name in part] if isinstance(part, dict) else [""] * len(part)
    values = part.values() if isinstance(part, dict) else part
    lines = ",\n".join(
        f"{further}{key}{_lines(each, further, len(key))}" for key, each in zip(keys, values, strict=True)
    )
    first, last = "{}" if isinstance(part, dict) else "[]"
    return f"{first}\n{lines}\n{indent}{last}"


if __name__ == "__main__":
    for each, schema in made().items():
        (FOLDER / f"{each}.json").write_text(text_of(schema), "utf-8")
