"""Random wiring files, and an interpreter of the equation in `ladder_sim.wirings`, which knows no layouts.

A read says of each output how much of it a block reads: of the sum over the ranks, and of the rank's own part.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import OwnWiring, own_wiring, parse
from ladder_sim.wirings.rules import Rule, WiringError
from tests.conftest import REPO

_PARTS = ("attention", "mlp")
_SLICES = st.sampled_from([":", "::2", "1::2", "::3", "2::3", "-1", "-2:", ":2", "50%:", "0"])


def table(*rules: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """A wiring file as it is parsed."""
    return {"wiring": 1, "layers": list(rules)} | ({"head": head} if head else {})


def own(*rules: Mapping[str, Any], head: str = "") -> OwnWiring:
    """A wiring file that was read."""
    return own_wiring(table(*rules, head=head), "mine.toml")


# wirings that have no name
NEW = {file.stem: file.read_text("utf-8") for file in sorted((REPO / "examples" / "wirings").glob("*.toml"))}

# weights of outputs in two lanes: those that ops show, which have no factors, and more
SWITCHES = (1, {"x": 1}, {"m": 1})
WEIGHTS = (*SWITCHES, "learned", {"x": 0.5, "m": 2}, {"m": "learned"})


@st.composite
def _keys(draw: st.DrawFn, lanes: Sequence[Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if draw(st.booleans()):
        keys["delay"] = draw(st.integers(0, 4))
        keys["instead"] = draw(st.sampled_from(["nothing", "own"]))
    if draw(st.booleans()):
        keys["reduce"] = draw(st.sampled_from(["sum", "none", "none", "mean"]))
    if draw(st.integers(0, 5)) == 0:
        keys["percent"] = 50
    if draw(st.integers(0, 3)) == 0:
        keys["weight"] = draw(st.sampled_from([0, 0.5, -2, 1]))
    if lanes and draw(st.booleans()):
        keys["lane"] = draw(st.sampled_from(["x", "m"]))
        keys["weight"] = draw(st.sampled_from(lanes))
    return keys


@st.composite
def files(draw: st.DrawFn, lanes: Sequence[Any] = ()) -> tuple[OwnWiring, int]:
    """A wiring file, and layers that it fits; with two lanes, if there are weights for these."""
    layers = draw(st.integers(1, 6))
    rules: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.sampled_from(["at", "blocks", ""]))
        rule: dict[str, Any] = {where: draw(_SLICES)} if where else {}
        if where != "blocks" and draw(st.booleans()):
            rule |= {part: draw(_keys(lanes)) for part in _PARTS if draw(st.booleans())}
        rules.append(rule | draw(_keys(lanes)))
    if draw(st.integers(0, 3)) == 0:
        rules.append({"at": draw(_SLICES), "fused": draw(_keys(lanes))})
    variant = own_wiring(table(*rules, head=draw(st.sampled_from(["mean", "mean", "own", ""]))), "mine.toml")
    try:
        lay_out(variant, layers)
    except WiringError:
        assume(False)
    return variant, layers


def rules_of(variant: str, layers: int) -> list[Rule]:
    """The rule of every block."""
    return [each.rule for each in parse(variant).place(layers)]


def lanes_of(rules: Sequence[Rule]) -> list[str]:
    """Lanes that any block reads."""
    return list(dict.fromkeys(rule.lane for rule in rules))


def weight_of(rule: Rule, lane: str) -> float:
    """Factor of a block's output in a lane; what is learned begins as 1."""
    weight = rule.weight.get(lane, 0) if isinstance(rule.weight, Mapping) else rule.weight
    return 1.0 if weight == "learned" else float(weight)


def equation(rules: Sequence[Rule], channel: int = 0) -> list[dict[int, str]]:
    """Which form of which output each block reads, and the LM head: sum, mean or own; `channel` is in percent."""
    count = len(rules)

    def collector(output: int) -> int | None:
        reducing = (i for i in range(output, count) if rules[i].reduce != "none" and rules[i].percent > channel)
        return next(reducing, None)

    reads: list[dict[int, str]] = []
    first, kept = 0, set()
    for i in range(count + 1):
        first = max(first, i - (rules[i].delay if i < count else 0))
        read = {}
        for output in range(i):
            settled = collector(output)
            if settled is not None and settled < first:
                read[output] = "mean" if settled > output and rules[settled].reduce == "mean" else "sum"
            elif output < first or output in kept or rules[i].instead == "own":
                read[output] = "own"
                kept.add(output)
        reads.append(read)
    return reads


def value(read: Mapping[int, str], parts: Sequence[Any], rank: int, weight: Callable[[int], Any]) -> Any:
    """What a rank adds to the embedding, given every output's parts on all ranks."""
    total: Any = 0
    for output, form in read.items():
        every = parts[output]
        whole = sum(every[1:], every[0])
        term = every[rank] if form == "own" else whole / len(every) if form == "mean" else whole
        total = total + weight(output) * term
    return total
