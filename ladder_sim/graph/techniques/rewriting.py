"""A layout as a list of ops that can be replaced, moved and repeated, and back."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import OpKind, PortionOf, ResidualOp, Role


class Step(NamedTuple):
    """One op of a layout that is being rewritten."""

    name: str
    kind: OpKind
    layer: int
    """As `Op.layer`."""
    role: Role
    after: tuple[int, ...]
    """Keys of the steps that it needs; in an unchanged layout their positions."""

    def needing(self, after: tuple[int, ...]) -> "Step":
        """Return the same step with other needs; `_replace` takes five times as long."""
        return Step(self.name, self.kind, self.layer, self.role, after)


def steps_of(layout: Layout) -> list[Step]:
    """Return the ops of a layout, in issue order."""
    roles = [layout.roles[like] for like in layout.same_as]
    return list(map(Step, layout.names, layout.kinds, layout.layers, roles, layout.after))


def readers_of(steps: Sequence[Step]) -> Mapping[int, list[int]]:
    """Return the positions of the steps that need each step."""
    readers: dict[int, list[int]] = defaultdict(list)
    for position, step in enumerate(steps):
        for needed in step.after:
            readers[needed].append(position)
    return readers


def layout_of(layout: Layout, steps: Iterable[tuple[int, Step]]) -> Layout:
    """Return the layout with other ops, in issue order, each with the key by which others need it."""
    positions: dict[int, int] = {}
    roles: dict[Role, int] = {}
    names, kinds, layers, after, same_as = [], [], [], [], []
    for position, (own, (name, kind, layer, role, keys)) in enumerate(steps):
        positions[own] = position
        names.append(name)
        kinds.append(kind)
        layers.append(layer)
        needed = [positions[key] for key in keys]
        after.append(tuple(dict.fromkeys(needed) if len(needed) > 1 else needed))
        same_as.append(roles.setdefault(role, len(roles)))

    def number_of(other: Role, role: Role) -> int:
        """Return the number of another role, for the same tokens as `role`."""
        return roles[PortionOf(other, role.portion) if isinstance(role, PortionOf) else other]

    firsts = {layout.roles[other]: layout.roles[first] for first, others in layout.next_to.items() for other in others}
    next_to: dict[int, tuple[int, ...]] = {}
    chunked: dict[int, int] = {}
    for role, number in roles.items():
        whole = role.role if isinstance(role, PortionOf) else role
        if whole in firsts:
            first = number_of(firsts[whole], role)
            next_to[first] = (*next_to.get(first, ()), number)
        if isinstance(whole, ResidualOp) and whole.gemm is not None:
            chunked[number] = number_of(whole.gemm, role)
    return replace(
        layout,
        names=tuple(names),
        kinds=tuple(kinds),
        layers=tuple(layers),
        after=tuple(after),
        same_as=tuple(same_as),
        roles=tuple(roles),
        next_to=next_to,
        chunked=chunked,
    )
