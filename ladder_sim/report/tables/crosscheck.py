"""A cross-check's result, as a table for people and as a page with plots."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.report.tables.console import table
from ladder_sim.units import format_bytes, format_seconds

COLUMNS = ("link", "variant", "", "predicted", "measured", "95 % interval", "error", "at most")
_NOT_JUDGED = "-"

# as `python -m calibration crosscheck` writes it
Result = Mapping[str, Any]


def crosscheck_report(result: Result) -> RenderableType:
    """What ran, every row, and the verdict."""
    return Group(Text(title(result)), Text(), table(COLUMNS, cells_of(result), left=3), Text(), Text(verdict(result)))


def title(result: Result) -> str:
    """What ran where."""
    run, machine = result["run"], result["environment"]
    load, cores, threads = machine["load"], machine["cpu_cores"], run["threads"]
    return (
        f"{run['model']}: {run['layers']} layers, hidden {run['hidden']}, TP {run['tp']}, backend {run['backend']}, "
        f"batch {run['batch']}, prompt {run['prompt']}, {run['gen']} new tokens, stack {run['stack']}\n"
        f"fp32 on {machine['cpu']}, {cores} core{'s' * (cores > 1)}, torch {machine['torch']}, "
        f"{threads} thread{'s' * (threads > 1)} per rank; "
        f"{run['rounds']} rounds, load average {min(load):.1f} to {max(load):.1f}"
    )


def verdict(result: Result) -> str:
    """How far predictions are off, and whether any is beyond its bound."""
    judged = [row for row in result["rows"] if row["bound"] is not None]
    beyond = [f"{row['variant']} {row['quantity']} on {row['link']}" for row in judged if row["beyond"]]
    parts = []
    for name, quantities in (("latency", ("prefill", "decode")), ("ladder's speedup", ("speedup",))):
        errors = [abs(row["error"]) for row in judged if row["quantity"] in quantities]
        if errors:
            parts.append(f"{name} errs {sum(errors) / len(errors):.1%} on average and {max(errors):.1%} at most")
    ending = f"beyond the bound: {', '.join(beyond)}" if beyond else "none is beyond its bound"
    found = f"{'; '.join(parts)}; {ending}."
    return found[0].upper() + found[1:]


def rests_on(result: Result) -> str:
    """What the predictions were calibrated on."""
    found = result["calibration"]
    resume = ", ".join(f"{format_seconds(seconds)} in {phase}" for phase, seconds in found["resume_s"].items())
    beside = "".join(
        f" Beside a computation an all-reduce of {format_bytes(one['bytes'])} takes {one['slowed']:.0%} longer, and "
        f"{one['core_share']:.0%} of its core."
        for one in found["beside"]
    )
    return (
        f"Calibrated on {len(found['kernels'])} kernels of the upper bound, timed in place, and on standard on one "
        f"link: a computation that waited for a message goes on {resume} after its end.{beside} Rows without a bound "
        "are not judged."
    )


def cells_of(result: Result) -> Iterator[tuple[str, ...]]:
    """The table's cells, a row per variant."""
    for row in result["rows"]:
        if row["quantity"] == "request":
            continue
        write = "{:.3f}".format if row["quantity"] == "speedup" else format_seconds
        yield (
            row["link"],
            row["variant"],
            row["quantity"],
            write(row["predicted"]),
            write(row["measured"]),
            f"{write(row['low'])} to {write(row['high'])}",
            f"{row['error']:+.1%}" + (" !" if row["beyond"] else ""),
            _NOT_JUDGED if row["bound"] is None else f"{row['bound']:.0%}",
        )
