"""Results on disk: read again to be shown, or to use their calibration for the same runs on the same machine."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from calibration.crosscheck.predict import Calibration
from ladder_sim.costs.profile import Positive
from ladder_sim.costs.recorded import Overlap
from ladder_sim.costs.table_parts import CurvePart, curve
from ladder_sim.costs.typed_json import BrokenRuleError, Error, Head, Part, read_head, refused
from ladder_sim.errors import ProfileError, UsageError
from ladder_sim.graph.shapes import Shape
from ladder_sim.specs.scenario import Scenario
from ladder_sim.system.files import read_text
from ladder_sim.system.schema import Schema

SCHEMA = Schema(version=2, oldest=2, stale="run `ladder-sim crosscheck` again")
_SHAPES = {shape.__name__: shape for shape in get_args(Shape)}
_WHAT = "a result that `crosscheck --json` wrote"
# the entries of an environment that times depend on
_MACHINE = ("cpu", "cpu_cores", "gpu", "driver", "torch", "nccl")

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


class KernelPart(Part, extra="allow"):
    """A kernel of a calibration, with the sizes that its shape has."""

    __pydantic_extra__: dict[str, str | bool | int | float] = Field(init=False)
    kind: str
    shape: str
    seconds: Positive


class OverlapPart(Part):
    """An `Overlap` of messages of one size."""

    bytes: Positive
    core_share: Annotated[float, Field(ge=0, le=1)]
    slowed: Share


class ResumePart(Part):
    """Seconds by phase."""

    prefill: Share
    decode: Share


class CalibrationPart(Part):
    """A `Calibration`."""

    kernels: list[KernelPart]
    links: dict[Name, dict[str, CurvePart]]
    resume_s: ResumePart
    beside: list[OverlapPart]


class RowPart(Part):
    """A `compare.Row`, and what follows from it."""

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

    schema_version: Literal[2]
    run: RunPart
    environment: EnvironmentPart
    calibration: CalibrationPart
    rows: list[RowPart]


def read_result(file: Path) -> dict[str, Any]:
    """Read an earlier result; raises UsageError if the file is not one."""
    text, _ = _read(file, UsageError)
    result: dict[str, Any] = json.loads(text)
    return result


def _read(file: Path, error: type[Error]) -> tuple[str, ResultDocument]:
    text = read_text(file, what=_WHAT, error=error)
    try:
        read_head(Head, text, SCHEMA, f"'{file}'", error)
        return text, ResultDocument.model_validate_json(text)
    except ValidationError as broken:
        raise refused(broken, f"'{file}'", what=_WHAT, error=error) from None


def calibration_fields(calibration: Calibration) -> dict[str, Any]:
    """A calibration as JSON, without its scenario."""
    return {
        "kernels": [
            {"kind": kind, "shape": type(shape).__name__, **dataclasses.asdict(shape), "seconds": seconds}
            for (kind, shape), seconds in calibration.kernels.items()
        ],
        "links": {
            name: {kind: {"bytes": c.size_bytes.tolist(), "seconds": c.seconds.tolist()} for kind, c in curves.items()}
            for name, curves in calibration.links.items()
        },
        "resume_s": dict(calibration.resume_s),
        "beside": [{"bytes": size, **slowdown._asdict()} for size, slowdown in calibration.overlaps.items()],
    }


def reuse(file: Path, scenario: Scenario, run: Mapping[str, Any], machine: Mapping[str, Any]) -> Calibration:
    """Take the calibration of an earlier result.

    `run` and `machine` are what runs, as far as costs depend on it, and this machine's environment, both in the form of
    a result. Raises ProfileError if the file is not a result, or is one of other runs or another machine.
    """
    _, result = _read(file, ProfileError)
    earlier_run, earlier_machine = result.run.model_dump(), result.environment.model_dump()
    values = {name: (earlier_run[name], value) for name, value in run.items()}
    values |= {name: (earlier_machine.get(name), machine.get(name)) for name in _MACHINE}
    different = [f"{name} {earlier} instead of {now}" for name, (earlier, now) in values.items() if earlier != now]
    if different:
        raise ProfileError(
            f"calibration '{file}' is of other runs or another machine: {', '.join(different)}",
            hint="leave out --calibration to measure again",
        )
    try:
        return _calibration(result.calibration, scenario)
    except BrokenRuleError as broken:
        raise refused(broken, f"'{file}'", what=_WHAT, error=ProfileError) from None


def _calibration(part: CalibrationPart, scenario: Scenario) -> Calibration:
    for name, link in part.links.items():
        if "all_reduce" not in link:
            raise BrokenRuleError(f"calibration.links.{name} lacks 'all_reduce'")
    kernels = {}
    for number, kernel in enumerate(part.kernels):
        try:
            shape = _SHAPES[kernel.shape](**kernel.model_extra or {})
        except (KeyError, TypeError):
            raise BrokenRuleError(f"calibration.kernels[{number}] has not the sizes of a kernel") from None
        kernels[kernel.kind, shape] = kernel.seconds
    return Calibration(
        scenario=scenario,
        kernels=kernels,
        links={
            name: {kind: curve(points, f"calibration.links.{name}.{kind}") for kind, points in link.items()}
            for name, link in part.links.items()
        },
        resume_s={"prefill": part.resume_s.prefill, "decode": part.resume_s.decode},
        overlaps={overlap.bytes: Overlap(overlap.core_share, overlap.slowed) for overlap in part.beside},
    )
