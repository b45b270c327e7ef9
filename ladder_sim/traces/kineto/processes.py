"""Splits a file that holds several ranks: tools that merge files put a tag before their process ids, "[TP00] 4242"."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from ladder_sim.errors import UsageError
from ladder_sim.traces.kineto.reader import CALLS, Event, KinetoFile

_TAGGED = re.compile(r"\[([^\]]+)\]")
_DIGITS = re.compile(r"\d+")


def split_ranks(file: KinetoFile) -> list[KinetoFile]:
    """A file for each rank that this one holds: itself, unless it was merged.

    Raises
    ------
    UsageError
        It holds several processes whose events cannot be told apart.
    """
    parts: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for category, events in file.events.items():
        for event in events:
            match = _TAGGED.match(str(event.process))
            parts[match[1] if match else ""][category].append(event)
    tags = sorted(tag for tag in parts if tag)
    if not tags:
        _check_one_process(file)
        return [file]
    return list(_of_tags(file, {tag: parts[tag] for tag in tags}))


def _of_tags(file: KinetoFile, parts: dict[str, dict[str, list[Event]]]) -> Iterator[KinetoFile]:
    numbers = {tag: int("".join(_DIGITS.findall(tag)) or 0) for tag in parts}
    unique = len(set(numbers.values())) == len(numbers)
    for position, (tag, events) in enumerate(parts.items()):
        place = {"rank": numbers[tag] if unique else position, "world_size": len(parts)}
        yield KinetoFile(
            metadata={**file.metadata, "distributedInfo": place},
            events=defaultdict(list, events),
            name=f"{file.name} [{tag}]",
            dropped=file.dropped,
        )


def _check_one_process(file: KinetoFile) -> None:
    """Calls of several processes have the same correlation ids: nobody knows which of them launched a kernel."""
    calls = {(event.process, event.args.get("correlation")) for event in file.events[CALLS]}
    processes = Counter(correlation for _, correlation in calls if correlation is not None)
    if processes and max(processes.values()) > 1:
        raise UsageError(
            f"trace '{file.name}' holds {max(processes.values())} processes with the same correlation ids",
            hint="give the file of each rank",
        )
