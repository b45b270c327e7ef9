"""Hypothesis strategies that several test files share."""

from hypothesis import strategies as st

from ladder_sim.des.program import NO_GROUP, Program, Stream, Task

# whole numbers make ties, fractions make sums that round
SECONDS = st.one_of(st.integers(0, 3).map(float), st.floats(1e-3, 10.0))


@st.composite
def programs(draw: st.DrawFn, *, most_units: int = 14) -> Program:
    """Random programs that cannot deadlock: dependencies point backwards, collectives are issued in one order.

    Every rank has some compute streams and a stream for collectives; a collective has a member on every rank.
    """
    ranks = draw(st.integers(1, 3))
    compute = draw(st.integers(1, 2))
    streams = [Stream(name=f"compute{n}", rank=rank) for rank in range(ranks) for n in range(compute)]
    streams += [Stream(name="comm", rank=rank) for rank in range(ranks)]
    tasks: list[Task] = []
    for unit in range(draw(st.integers(0, most_units))):
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
