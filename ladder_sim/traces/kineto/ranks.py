"""Joins the files of several ranks: a collective starts when the last of its ranks is ready."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from ladder_sim.traces.graph import Collective, TraceGraph
from ladder_sim.traces.kineto.draft import SLACK_S, Draft, RankDraft, finish


def join(files: Sequence[RankDraft]) -> TraceGraph:
    """Return one graph of all ranks."""
    ranks = [file.rank for file in files]
    notes = list(_shared_notes(files))
    if len(files) > 1:
        _on_one_clock(files)
    world = max(file.world_size for file in files)
    missing = sorted(set(range(world)) - set(ranks))
    if missing:
        collectives = sum(draft.collective is not None for file in files for draft in file.drafts)
        notes.append(
            f"no trace of {_named(missing)} of {world}: "
            f"{collectives} collectives keep the time recorded on the others, waits for peers included"
        )
    alone = 0
    meetings = (together for members in _match(files) for together in _together(members))
    for number, members in enumerate(meetings):
        if len(members) > 1:
            _meet(number, members)
        else:
            alone += 1
    if alone and len(files) > 1:
        notes.append(f"{alone} collectives have no partner in the other ranks' traces and keep their time")
    steps = max((file.steps for file in files), key=len)
    return finish([draft for file in files for draft in file.drafts], steps, notes).with_starts()


def _shared_notes(files: Sequence[RankDraft]) -> Iterator[str]:
    """Yield every note once, with its ranks if not all ranks have it."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for file in files:
        for note in dict.fromkeys(file.notes):
            ranks[note].append(file.rank)
    for note, own in ranks.items():
        yield note if len(own) == len(files) else f"{_named(own)}: {note}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _match(files: Sequence[RankDraft]) -> Iterator[list[Draft]]:
    """Yield together the n-th collectives of a process group on all ranks, or apart those that differ."""
    queues: dict[str, list[list[Draft]]] = defaultdict(list)
    for file in files:
        own: dict[str, list[Draft]] = defaultdict(list)
        for draft in sorted(file.drafts, key=lambda draft: draft.start_s if draft.issued_s is None else draft.issued_s):
            if draft.collective is not None:
                own[draft.collective.group].append(draft)
        for group, queue in own.items():
            queues[group].append(queue)
    for group_queues in queues.values():
        for place in range(max(map(len, group_queues))):
            alike: dict[tuple[str, Collective | None], list[Draft]] = defaultdict(list)
            for draft in (queue[place] for queue in group_queues if place < len(queue)):
                alike[draft.kind, draft.collective].append(draft)
            yield from alike.values()


def _together(members: Sequence[Draft]) -> Iterator[list[Draft]]:
    """Yield groups of the collectives that ran at the same time.

    Others did not meet: their recordings began at different collectives, or they are of groups whose names were not
    recorded, such as those of pipeline stages.
    """
    meeting: list[Draft] = []
    for draft in sorted(members, key=lambda draft: draft.start_s):
        if meeting and draft.start_s > min(other.end_s for other in meeting) + SLACK_S:
            yield meeting
            meeting = []
        meeting.append(draft)
    yield meeting


def _meet(number: int, members: Sequence[Draft]) -> None:
    """Start all members when the last one is ready; the time of each from then on is the transfer."""
    start_s = max(draft.start_s for draft in members)
    for draft in members:
        draft.group = number
        draft.duration_s = max(0.0, draft.end_s - start_s)


def _on_one_clock(files: Sequence[RankDraft]) -> None:
    """Shift every rank's times to the clock of the first.

    Processes of one machine share a clock. Clocks of different machines differ. A collective ends on all ranks at the
    same time, so its recorded ends show the difference.
    """
    first = files[0]
    for file in files[1:]:
        shift_s = file.origin_s - first.origin_s
        if file.host != first.host or not file.host:
            pairs = [(pair[0].end_s, pair[1].end_s) for pair in _match([first, file]) if len(pair) == 2]
            offsets_s = [first_s - own_s for first_s, own_s in pairs]
            if offsets_s and abs(median(offsets_s) - shift_s) > max(offsets_s) - min(offsets_s):
                shift_s = median(offsets_s)
        for draft in file.drafts:
            draft.start_s += shift_s
            draft.end_s += shift_s
            draft.ready_s += shift_s
