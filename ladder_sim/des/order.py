"""The order in which a program's tasks can be evaluated one after the other."""

from collections.abc import Sequence

import networkx as nx

from ladder_sim.des.program import NO_GROUP, Program


def evaluation_order(program: Program, compute: int, comm: int) -> Sequence[int]:
    """Task indices such that everything a task waits for comes before it, and collectives come as early as they can.

    Members of a collective group stand together. Programs that are issued in such an order keep it.

    Parameters
    ----------
    program
        Its tasks.
    compute, comm
        The streams of kernels and of collectives that share a GPU; -1 where nothing is shared.

    Raises
    ------
    DeadlockError
        There is no such order.
    """
    issued_so = _issued_in_order(program, compute, comm)
    return range(len(program.tasks)) if issued_so else _topological(program, compute, comm)


def _issued_in_order(program: Program, compute: int, comm: int) -> bool:
    kernel = -1
    # last one issued so far
    for index, task in enumerate(program.tasks):
        after = task.after
        if task.group != NO_GROUP or (after and max(after) >= index):
            return False
        if task.stream == comm:
            # it may overlap a kernel that it does not wait for, so it has to come before that one
            if kernel >= 0 and kernel not in after:
                return False
        elif task.stream == compute:
            kernel = index
    return True


def _topological(program: Program, compute: int, comm: int) -> list[int]:
    unit_of = [task.group if task.group != NO_GROUP else -2 - index for index, task in enumerate(program.tasks)]
    members: dict[int, list[int]] = {}
    for index, unit in enumerate(unit_of):
        members.setdefault(unit, []).append(index)
    units: nx.DiGraph[int] = nx.DiGraph()
    units.add_nodes_from(members)
    units.add_edges_from((unit_of[before], unit_of[after]) for before, after in program.precedence().edges)

    def early(unit: int) -> tuple[bool, bool, int]:
        """Collectives first, then what shares nothing, kernels last."""
        first = members[unit][0]
        stream = program.tasks[first].stream
        return (stream != comm, stream == compute, first)

    try:
        return [index for unit in nx.lexicographical_topological_sort(units, key=early) for index in members[unit]]
    except nx.NetworkXUnfeasible:
        raise program.explain_deadlock(range(len(program.tasks))) from None
