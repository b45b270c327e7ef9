"""JSON files whose entries are stated as types, and what is said of one that breaks a rule."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ladder_sim.errors import LadderSimError
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
