"""How ranks are divided into groups that communicate. Needs no torch."""

from typing import NamedTuple


class Layout(NamedTuple):
    """A number of nodes, and of ranks on each."""

    nodes: int
    per_node: int

    @property
    def ranks(self) -> int:
        """On all nodes."""
        return self.nodes * self.per_node


def layouts(world: Layout) -> list[Layout]:
    """Return every layout of two ranks or more whose groups fill `world`.

    Examples
    --------
    >>> [tuple(layout) for layout in layouts(Layout(2, 4))]
    [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
    """
    every = (Layout(nodes, per_node) for nodes in _divisors(world.nodes) for per_node in _divisors(world.per_node))
    return [layout for layout in every if layout.ranks > 1]


def groups(layout: Layout, world: Layout) -> list[list[int]]:
    """Return the ranks of each group: neighbours in a node, and their counterparts on the nodes that follow.

    Examples
    --------
    >>> groups(Layout(2, 2), Layout(2, 4))
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    return [
        [
            node * world.per_node + place
            for node in range(n, n + layout.nodes)
            for place in range(p, p + layout.per_node)
        ]
        for n in range(0, world.nodes, layout.nodes)
        for p in range(0, world.per_node, layout.per_node)
    ]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
