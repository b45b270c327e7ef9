"""Results on disk, read again to be shown."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from ladder_sim.costs.profile import Positive
from ladder_sim.costs.table_parts import WaitPart
from ladder_sim.costs.typed_json import Head, Part, read_head, refused
from ladder_sim.errors import UsageError
from ladder_sim.system.files import Schema, read_text

# 3: predictions are from a profile, whose file holds what `calibration` did
SCHEMA = Schema(version=3, oldest=2, stale="run `ladder-sim calibrate check` again")
_WHAT = "a result that `ladder-sim calibrate check --json` wrote"

# shown in a terminal: no escape sequences
Name = Annotated[str, Field(pattern=r"^\P{C}*$")]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0)]


class RunPart(Part):
    """What ran."""

    model: Name
    layers: Count
    hidden: Count
    vocab: Count
    stack: Name
    tp: Count
    batch: Count
    prompt: Count
    gen: Count
    backend: Name
    threads: Count
    shares: list[Share]
    rounds: Count


class EnvironmentPart(Part, extra="allow"):
    """The machine: what is shown of it, and any other facts."""

    __pydantic_extra__: dict[str, str | bool | int | float] = Field(init=False)
    cpu: Name
    cpu_cores: Count
    torch: Name
    load: Annotated[list[Share], Field(min_length=1)]


class FittedPart(Part):
    """What the profile behind the predictions holds."""

    kernels: Count
    waits: list[WaitPart]


class RowPart(Part):
    """A quantity of a variant on a link, predicted and measured, and what follows from it."""

    link: Name
    variant: Name
    quantity: Literal["prefill", "decode", "request", "speedup"]
    predicted: Positive
    measured: Positive
    low: Positive
    high: Positive
    bound: Positive | None
    error: float
    beyond: bool

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not math.isclose(self.error, self.predicted / self.measured - 1.0, rel_tol=1e-9, abs_tol=1e-9):
            raise ValueError("error must be predicted / measured - 1")
        return self


class ResultDocument(Part):
    """A result."""

    schema_version: Literal[2, 3]
    run: RunPart
    environment: EnvironmentPart
    calibration: dict[str, object] = Field(default_factory=dict)
    """Part of version 2, which had no profiles; it is not read."""
    fitted: FittedPart | None = None
    """Figures fitted for the run; None in version 2."""
    rows: list[RowPart]


def read_result(file: Path) -> dict[str, Any]:
    """Read an earlier result; raises UsageError if the file is not one."""
    text = read_text(file, what=_WHAT, error=UsageError)
    try:
        read_head(Head, text, SCHEMA, f"'{file}'", UsageError)
        ResultDocument.model_validate_json(text)
    except ValidationError as broken:
        raise refused(broken, f"'{file}'", what=_WHAT, error=UsageError) from None
    result: dict[str, Any] = json.loads(text)
    return result
