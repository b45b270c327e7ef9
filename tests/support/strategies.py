"""Hypothesis strategies that several test files share, and the design's equations that they are held against."""

import json
from typing import Any, Literal

from hypothesis import strategies as st

from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.shared import NOTHING, Demand, Device
from ladder_sim.wirings.names import FAMILIES, Variant

# whole numbers make ties, fractions make sums that round
SECONDS = st.one_of(st.integers(0, 3).map(float), st.floats(1e-3, 10.0))
# of an H100
SMS = 132
# of the memory's bandwidth, or of a time
SHARES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-3, 1.0))
# of a kernel on a collective's steps, in multiples of their time alone
DELAYS = st.one_of(st.sampled_from([0.0, 0.5, 3.5]), st.floats(1e-3, 5.0))
KERNELS = st.one_of(
    st.builds(Demand, lost=st.sampled_from([0.0, 0.75, 1.0, 2.0]), memory=SHARES, delay=DELAYS), st.just(NOTHING)
)
COLLECTIVES = st.builds(
    Demand, held_sms=st.integers(1, 40), memory=SHARES, link=st.sampled_from([0.0, 1.0]), waits=SHARES
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
                wake_s=draw(SECONDS) if stream == collectives and draw(st.booleans()) else 0.0,
            )
        )
    return Program(tasks=tuple(tasks), streams=streams, device=Device(sms=SMS))


# what a residual may have of an output: the sum over the ranks, or their mean, or the rank's own part, or either, by
# channel
State = Literal["sum", "mean", "own", "mixed"]


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[str, int]:
    """A variant that fits a number of layers."""
    layers = draw(LAYERS)
    families = list(FAMILIES.values())
    hybrid = draw(st.booleans())
    family = draw(st.sampled_from([each for each in families if each.fits_hybrids or not hybrid]))
    last = draw(st.integers(1, layers)) if hybrid else layers
    number = 0
    if family.parameter is not None:
        number = draw(st.integers(family.parameter.smallest, family.parameter.largest(last)))
    return Variant(family=family, number=number, last=last if hybrid else 0).name, layers


def equation(variant: str, layers: int, ladder_layers: frozenset[int] | None = None) -> list[dict[int, State]]:
    """What each block reads of which outputs, by the papers' equations; block -1 is the embedding.

    In the end there is one more, for the LM head.
    """
    family, *numbers = variant.removeprefix("hybrid-").replace("farskip:own", "farskip-own").split(":")
    last = int(numbers.pop()) if variant.startswith("hybrid-") else layers
    number = int(numbers[0]) if numbers else 1
    if family == "drop":
        last = number
    tail = range(layers - last, layers) if ladder_layers is None else sorted(ladder_layers)
    parts = [
        (layer, part)
        for layer in range(layers)
        for part in (("both",) if family == "parallel" and layer in tail else ("attention", "mlp"))
    ]
    count, first = len(parts), len(parts) - sum(layer in tail for layer, _ in parts)
    late = {"ladder": number, "delayed": number, "farskip": 1, "farskip-own": 1}.get(family, 0)
    every = {"track": 2 * number, "desync": number}.get(family, 1)

    def exchanged(i: int, j: int) -> State:
        """What block i reads of output j, both of the tail, where ranks may keep what is their own."""
        if family == "upper-bound" or (family == "drop" and parts[j][1] == "attention" and i == j + 1):
            return "own"
        if family == "partial" and number < 100:
            return "mixed"
        reduced = min(first + -(-(j - first + 1) // every) * every, count) - 1
        return "own" if reduced >= i else "sum" if reduced == j else "mean"

    reads: list[dict[int, State]] = []
    for i in range(count + 1):
        # a sum that was read once stays
        read = {j: state for j, state in reads[-1].items() if state != "own"} if reads else {}
        in_tail = i < count and parts[i][0] in tail
        for j in range(i):
            own_rules = ladder_layers is None and j >= first
            if j < i - (late if in_tail else 0):
                read[j] = exchanged(i, j) if own_rules else "sum"
            elif family in ("delayed", "farskip-own"):
                read.setdefault(j, "own")
        reads.append({EMBEDDING: "sum", **read})
    return reads
