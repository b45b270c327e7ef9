"""The order in which a program's tasks can be evaluated one after the other."""

from collections.abc import Sequence

import networkx as nx

from ladder_sim.des.program import NO_GROUP, Program


def evaluation_order(program: Program) -> Sequence[int]:
    """Task indices such that everything a task waits for comes before it, and collectives come as early as they can.

    Members of a collective group stand together. Programs that are issued in such an order keep it.

    Raises
    ------
    DeadlockError
        There is no such order.
    """
    return range(len(program.tasks)) if _issued_in_order(program) else _topological(program)


def _issued_in_order(program: Program) -> bool:
    for index, task in enumerate(program.tasks):
        if task.group != NO_GROUP or any(before >= index for before in task.after):
            return False
        # a collective could overlap the task before it, unless it waits for just that one
        if task.demand.held_sms and index - 1 not in task.after:
            return False
    return True


def _topological(program: Program) -> list[int]:
    unit_of = [task.group if task.group != NO_GROUP else -2 - index for index, task in enumerate(program.tasks)]
    members: dict[int, list[int]] = {}
    for index, unit in enumerate(unit_of):
        members.setdefault(unit, []).append(index)
    units: nx.DiGraph[int] = nx.DiGraph()
    units.add_nodes_from(members)
    units.add_edges_from((unit_of[before], unit_of[after]) for before, after in program.precedence().edges)

    def early(unit: int) -> tuple[bool, int]:
        first = members[unit][0]
        return (not program.tasks[first].demand.held_sms, first)

    try:
        return [index for unit in nx.lexicographical_topological_sort(units, key=early) for index in members[unit]]
    except nx.NetworkXUnfeasible:
        raise program.explain_deadlock(range(len(program.tasks))) from None
