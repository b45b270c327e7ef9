"""The order in which a program's tasks can be evaluated one after the other."""

from collections.abc import Sequence

from ladder_sim.des.program import NO_GROUP, Outline, Program


def evaluation_order(program: Program, compute: int, comm: int) -> Sequence[int]:
    """Task indices in an order in which dependencies come first, and collectives as early as possible.

    Members of a collective group are adjacent. A program that was issued in such an order keeps it. `compute` and
    `comm` are the streams of kernels and of collectives that share a GPU; -1 where nothing is shared.

    Raises
    ------
    DeadlockError
        There is no such order.
    """
    # the same for any durations: a prediction asks several times for each of few outlines
    known = program.outline.in_order
    if (compute, comm) not in known:
        known[compute, comm] = _issued_in_order(program.outline, compute, comm)
    return range(len(program.tasks)) if known[compute, comm] else _topological(program, compute, comm)


def _issued_in_order(outline: Outline, compute: int, comm: int) -> bool:
    if outline.members:
        return False
    # the last kernel issued so far, and the last that the collectives so far wait for, one behind the other
    kernel = waited = -1
    for index, (stream, after) in enumerate(zip(outline.streams, outline.after, strict=True)):
        if after and max(after) >= index:
            return False
        if stream == comm:
            # it may overlap a kernel that it does not wait for, so it must come before that kernel
            waited = max(waited, *(before for before in after if outline.streams[before] == compute), -1)
            if waited < kernel:
                return False
        elif stream == compute:
            kernel = index
    return True


def _topological(program: Program, compute: int, comm: int) -> list[int]:
    # programs in order need none of it
    import networkx as nx

    unit_of = [task.group if task.group != NO_GROUP else -2 - index for index, task in enumerate(program.tasks)]
    members: dict[int, list[int]] = {}
    for index, unit in enumerate(unit_of):
        members.setdefault(unit, []).append(index)
    units: nx.DiGraph[int] = nx.DiGraph()
    units.add_nodes_from(members)
    units.add_edges_from((unit_of[before], unit_of[after]) for before, after in program.precedence().edges)

    def early(unit: int) -> tuple[bool, bool, int]:
        """Collectives first, then tasks that share nothing, kernels last."""
        first = members[unit][0]
        stream = program.tasks[first].stream
        return (stream != comm, stream == compute, first)

    try:
        return [index for unit in nx.lexicographical_topological_sort(units, key=early) for index in members[unit]]
    except nx.NetworkXUnfeasible:
        raise program.explain_deadlock(range(len(program.tasks))) from None
