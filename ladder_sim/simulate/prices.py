"""What the ops of passes cost: equal ones are priced once, all in one call."""

from collections.abc import Hashable, Mapping, Sequence

from ladder_sim.costs.estimate import CostModel, Estimate
from ladder_sim.graph.ops import WHOLE, Op, Phase
from ladder_sim.graph.sizes import Sizes

# ops at the size of a pass and what each costs, by their numbers in `PassKernels.distinct`
Prices = Mapping[int, tuple[Op, Estimate]]


def price(
    costs: CostModel, passes: Sequence[tuple[Phase, Sizes]], distinct: Sequence[Mapping[int, Op]]
) -> list[Prices]:
    """Price the ops of passes, equal ones once and all in one call, so that each table is looked up once.

    Parts of a pass that are as large as each other have the same prices.

    Parameters
    ----------
    costs
        Prices ops of any size.
    passes
        Phase and sizes of each. Where passes differ in context only (`Sizes.apart_from_context`), nothing changes but
        attention.
    distinct
        Of each pass: the ops of one token that may run in it, by number.
    """
    places: list[tuple[int, int, int]] = []
    sized: list[Op] = []
    first: dict[tuple[Phase, Hashable], int] = {}
    alike = []
    for number, ((phase, sizes), ops) in enumerate(zip(passes, distinct, strict=True)):
        start = first.setdefault((phase, sizes.apart_from_context), number)
        alike.append(start)
        # of each part: what its ops are priced by
        parts = {portion: sizes.part(portion) for portion in {op.portion for op in ops.values()}}
        priced_by = {portion: (part.apart_from_context, part.context) for portion, part in parts.items()}
        in_parts: dict[Hashable, int] = {}
        for key, op in ops.items():
            if number != start and op.kind != "attention":
                continue
            place = len(sized)
            if op.portion is not WHOLE:
                others, context = priced_by[op.portion]
                # the parts of one op share its shape
                like = op.kind, id(op.shape), others, context if op.kind == "attention" else None
                place = in_parts.setdefault(like, place)
            places.append((number, key, place))
            if place == len(sized):
                sized.append(sizes.op(op))
    prices: list[dict[int, tuple[Op, Estimate]]] = [{} for _ in passes]
    estimates = costs.estimates(sized)
    for number, key, place in places:
        prices[number][key] = sized[place], estimates[place]
    return [{**prices[start], **own} for start, own in zip(alike, prices, strict=True)]
