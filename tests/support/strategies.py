"""Hypothesis strategies that several test files share, and the design's equations that they are held against."""

import json
from typing import Any

from hypothesis import strategies as st

from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.shared import NOTHING, Demand, Device

# whole numbers make ties, fractions make sums that round
SECONDS = st.one_of(st.integers(0, 3).map(float), st.floats(1e-3, 10.0))
# of an H100
SMS = 132
# of the memory's bandwidth
SHARES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-3, 1.0))
TILED = st.builds(
    Demand,
    tiles=st.one_of(st.integers(1, SMS), st.integers(1, 4 * SMS)),
    spare=st.sampled_from([0.0, 0.075, 1.0]),
    scatter=st.sampled_from([0.0, 0.5]),
    memory=SHARES,
)
ELASTIC = st.builds(Demand, spare=st.sampled_from([0.0, 0.25, 1.0]), memory=SHARES)
KERNELS = st.one_of(TILED, ELASTIC, st.just(NOTHING))
COLLECTIVES = st.builds(
    Demand,
    held_sms=st.integers(1, 40),
    memory=SHARES,
    link=st.sampled_from([0.0, 1.0]),
    slowdown=st.sampled_from([0.0, 0.4]),
)
LAYERS = st.integers(1, 40)
# any value that a JSON text can hold, and the NaN and infinities that Python's reader takes as well
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
# what no reader expects: numbers out of range, other types, and what a terminal would obey
_NUMBERS = [-1, 0, 1e300, -1e-300, 5e-324, 10**30, 10**400]
ODD = JSON | st.sampled_from([*_NUMBERS, "\x1b[31m", "\ud800"])
# stands for the embedding among block numbers
EMBEDDING = -1


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> bytes:
    """A JSON document as an edit or a bad copy leaves it: entries replaced, dropped or added, bytes flipped, or cut."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged_text(json.dumps(document)))
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        inner, key = document, ""
        # any depth, but deeper more often: most entries are there
        while isinstance(inner, dict | list) and inner and (inner is document or draw(st.integers(0, 4))):
            place, key = inner, draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
            inner = place[key]
        change = draw(st.sampled_from(["replace", "replace", "drop", "add"]))
        if change == "replace":
            place[key] = draw(ODD)
        elif change == "drop":
            del place[key]
        elif isinstance(place, dict):
            place[draw(st.text(max_size=8))] = draw(ODD)
        else:
            place.insert(key, draw(ODD))
        if not document:
            break
    return json.dumps(document).encode()


@st.composite
def damaged_text(draw: st.DrawFn, text: str) -> bytes:
    """A text of which bytes were changed, the end was cut off, or a line was dropped, doubled or garbled."""
    content = bytearray(text.encode())
    lines = bytes(content).splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    change = draw(st.sampled_from(["flip", "flip", "cut", "drop", "double", "garble"]))
    if change == "flip":
        for _ in range(draw(st.integers(1, 4))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
        return bytes(content)
    if change == "cut":
        return bytes(content[: draw(st.integers(0, len(content) - 1))])
    garbled = draw(st.binary(max_size=12) | st.text(max_size=12).map(lambda word: word.encode("utf-8", "replace")))
    lines[at : at + 1] = {"drop": [], "double": [lines[at]] * 2, "garble": [garbled + b"\n"]}[change]
    return b"".join(lines)


@st.composite
def programs(draw: st.DrawFn, *, maximum_units: int = 14) -> Program:
    """Random programs that cannot deadlock: dependencies point backwards, collectives are issued in one order.

    Every rank has some compute streams and a stream for collectives; a collective has a member on every rank.
    """
    ranks = draw(st.integers(1, 3))
    compute = draw(st.integers(1, 2))
    streams = [Stream(name=f"compute{n}", rank=rank) for rank in range(ranks) for n in range(compute)]
    streams += [Stream(name="comm", rank=rank) for rank in range(ranks)]
    tasks: list[Task] = []
    for unit in range(draw(st.integers(0, maximum_units))):
        issued = len(tasks)
        earlier = st.sets(st.integers(0, issued - 1), max_size=3) if issued else st.just(set())
        if draw(st.booleans()):
            members = [(ranks * compute + rank, unit) for rank in range(ranks)]
        else:
            members = [(draw(st.integers(0, len(streams) - 1)), NO_GROUP)]
        for stream, group in members:
            tasks.append(
                Task(
                    name=f"task{len(tasks)}",
                    stream=stream,
                    duration_s=draw(SECONDS),
                    after=tuple(sorted(draw(earlier))),
                    lead_s=draw(SECONDS),
                    group=group,
                )
            )
    return Program(tasks=tuple(tasks), streams=tuple(streams))


@st.composite
def sharing_programs(draw: st.DrawFn, *, maximum_tasks: int = 14, host: bool = False) -> Program:
    """Random programs of one rank whose kernels and collectives share the GPU; every dependency points backwards.

    There may be CPU launches before them. With `host`, tasks of the launching stream also stand between them and wait
    for them.
    """
    kernels, collectives = draw(st.permutations([0, 1]))
    streams = (Stream(name="first"), Stream(name="second"), Stream(name="launch"))
    count = draw(st.integers(1, maximum_tasks))
    launches = count if draw(st.booleans()) else 0
    tasks = [Task(name=f"launch{n}", stream=2, duration_s=draw(SECONDS)) for n in range(launches)]
    kinds = {kernels: KERNELS, collectives: COLLECTIVES, 2: st.just(NOTHING)}
    for number in range(count):
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        stream = (kernels, collectives, 2)[draw(st.integers(0, 1 + host))]
        tasks.append(
            Task(
                name=f"task{number}",
                stream=stream,
                duration_s=draw(SECONDS),
                after=(*(launches + before for before in sorted(after)), *([number] if launches else [])),
                lead_s=draw(SECONDS) if draw(st.booleans()) else 0.0,
                demand=draw(kinds[stream]),
            )
        )
    return Program(tasks=tuple(tasks), streams=streams, device=Device(sms=SMS))


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[str, int]:
    """A variant that fits a number of layers."""
    layers = draw(LAYERS)
    family = draw(st.sampled_from(["standard", "parallel", "ladder", "hybrid-ladder", "desync", "upper-bound"]))
    if family == "hybrid-ladder":
        return f"{family}:{draw(st.integers(1, layers))}", layers
    if family == "desync":
        return f"{family}:{draw(st.integers(1, 2 * layers))}", layers
    return family, layers


def equation(variant: str, layers: int, ladder_layers: frozenset[int] | None = None) -> list[set[int]]:
    """Outputs in the residual that each block reads, by the design's equations; block -1 is the embedding.

    The residual after block i is x[i], the sum of the embedding and the outputs of blocks 0 to i.
    """
    family, _, parameter = variant.partition(":")
    blocks = layers if family == "parallel" else 2 * layers
    per_layer = blocks // layers
    if ladder_layers is None:
        ladder_layers = frozenset(
            range(layers - int(parameter), layers)
            if family == "hybrid-ladder"
            else (range(layers) if family == "ladder" else ())
        )
    # x[i+1] = x[i] + h[i+1](x[i-1]) in ladder layers, x[i+1] = x[i] + h[i+1](x[i]) in all others
    reads = [i - 2 if i // per_layer in ladder_layers else i - 1 for i in range(blocks)]
    return [{EMBEDDING, *range(newest + 1)} for newest in reads]
