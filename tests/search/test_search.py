"""The search finds what simulating every candidate finds, says what is known of quality, and writes a file."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ladder_sim import Scenario, predict
from ladder_sim.search.search import counted, search
from ladder_sim.search.space import Chosen, Penalty, Space, read_space
from ladder_sim.specs import catalog
from ladder_sim.units import counted_text
from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import parse
from ladder_sim.wirings.rules import WiringError
from tests.conftest import REPO
from tests.support.commands import run

LADDER, HALF = {"delay": 1}, {"attention": {"reduce": "none"}}
SIX = replace(catalog.model("8b"), layers=6)
EXAMPLE = REPO / "examples" / "search.toml"
PENALTY = """[[penalty]]
choice = "ladder"
where = "top"
metric = "points"
layers = [2, 4, 6]
lost = [0.0, 1.0, 4.0]
source = "a table"
"""
SPACE = (
    """search = 1
group = 2
[choices]
ladder = { delay = 1 }
half = { attention.reduce = "none" }
"""
    + PENALTY
)


def exhaustive(scenario: Scenario, space: Space) -> dict[Chosen, float]:
    """Return the counted time of every candidate, each predicted by itself."""
    every = itertools.product(range(len(space.choices) + 1), repeat=len(space.groups(scenario.model.layers)))
    rewired = {chosen: space.wiring(chosen, scenario.model.layers) for chosen in every if any(chosen)}
    # ranks whose last outputs stay open are no model
    legal = {chosen: wiring for chosen, wiring in rewired.items() if _is_legal(wiring, scenario.model.layers)}
    times = predict(scenario, ["standard", *legal.values()])
    standard = (0,) * len(space.groups(scenario.model.layers))
    return {
        standard: times["standard"].request_s,
        **{chosen: counted(times[wiring].request_s, chosen) for chosen, wiring in legal.items()},
    }


def _is_legal(wiring: str, layers: int) -> bool:
    try:
        lay_out(wiring, layers)
    except WiringError:
        return False
    return True


@pytest.mark.parametrize(
    ("fields", "second"),
    [
        ({"tp": 4, "gen": 32}, {"reduce": "none"}),
        ({"tp": 8, "cluster": "l40s-pcie", "prompt": 4096, "gen": 8}, {"delay": 2}),
        # any rewired layer takes the engine's fused all-reduces from all of them
        ({"tp": 4, "stack": "vllm", "concurrency": 32, "gen": 64}, HALF),
    ],
)
def test_finds_what_simulating_every_candidate_finds(fields: dict[str, Any], second: dict[str, Any]) -> None:
    """On six layers the whole front equals the exhaustive one, from a tenth of its simulations."""
    scenario = Scenario(model=SIX, **fields)
    space = Space(choices={"ladder": LADDER, "second": second}, penalties={})
    every = exhaustive(scenario, space)
    best: dict[int, float] = {}
    for chosen, request_s in every.items():
        rewired = sum(map(bool, chosen))
        best[rewired] = min(best.get(rewired, math.inf), request_s)
    expected, fastest = {}, best[0]
    for rewired in range(1, 7):
        if best[rewired] < fastest:
            fastest = expected[rewired] = best[rewired]
    found = search(scenario, space)
    assert {each.layers: counted(each.request_s, _chosen(each.variant, space)) for each in found.unknown} == (
        pytest.approx(expected, rel=1e-9)
    )
    assert expected
    assert found.simulated < 0.1 * len(every)
    assert found.error < 0.01


def _chosen(variant: str, space: Space) -> Chosen:
    """Return the choices of a variant, by which choice has each layer's rules."""
    placed = parse(variant).place(6)
    forms = {(): 0} | {
        tuple(rule for _, _, rule in parse(space.wiring((number,) * 6, 6)).place(6)[:2]): number
        for number in range(1, len(space.choices) + 1)
    }
    return tuple(forms.get((placed[2 * layer].rule, placed[2 * layer + 1].rule), 0) for layer in range(6))


def test_quality_is_known_where_it_was_published_alone(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    space = read_space(tmp_path / "space.toml")
    # groups of two of nine layers: the first has one
    assert [len(group) for group in space.groups(9)] == [1, 2, 2, 2, 2]
    for chosen, lost in {(0, 0, 0, 1): 0.0, (0, 0, 1, 1): 1.0, (0, 1, 1, 1): 4.0}.items():
        assert space.lost(chosen, 8) == (space.penalties["ladder"], lost)
    # elsewhere, in more layers, next to another choice, or of another choice
    for chosen in ((0, 1, 0, 0), (0, 0, 1, 0), (1, 1, 1, 1), (0, 0, 2, 1), (0, 0, 0, 2)):
        assert space.lost(chosen, 8) is None
    penalty = Penalty(choice="a", where="any", metric="m", layers=(2, 6), lost=(0.5, 1.5), source="s")
    assert [penalty.at(layers) for layers in (1, 2, 3, 6, 7)] == [None, 0.5, 0.75, 1.5, None]
    anywhere = replace(space, penalties={"ladder": replace(space.penalties["ladder"], where="any")})
    assert anywhere.lost((1, 0, 0, 0), 8) == (anywhere.penalties["ladder"], 0.0)


def test_the_best_loses_no_more_than_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    space = read_space(tmp_path / "space.toml")
    scenario = Scenario(model=SIX, tp=8, cluster="l40s-pcie", gen=32)
    found = search(scenario, space)
    assert [(each.variant, each.loss and each.loss[1]) for each in found.known] == [
        ("hybrid-ladder:2", 0.0),
        ("hybrid-ladder:4", 1.0),
        ("ladder", 4.0),
    ]
    assert found.best is found.known[-1]
    accepted = search(scenario, replace(space, most_lost=1.0)).best
    assert accepted is not None
    assert accepted.variant == "hybrid-ladder:4"
    # nothing that is known is accepted
    unknown = search(scenario, replace(space, most_lost=-1.0)).best
    assert unknown is not None
    assert unknown.loss is None
    assert "its quality is unknown" in search(scenario, replace(space, most_lost=-1.0)).summary


def test_slices_are_short() -> None:
    space = Space(choices={"a": LADDER}, penalties={})
    given = {(1,) * 4: None, (0, 0, 1, 1): "-2:", (1, 1, 0, 0): ":2", (0, 1, 1, 0): "1:3", (0, 1, 0, 1): "1::2"}
    given |= {(1, 0, 1, 0): "::2", (0, 1, 0, 0): "1:2"}
    for chosen, at in given.items():
        (table,) = space.wiring(chosen, 4).variant.table["layers"]
        assert table.get("at") == at
    (table,) = space.wiring((1, 1, 0, 1), 4).variant.table["layers"]
    assert table["at"] == [0, 1, 3]


def test_the_best_is_written_as_a_wiring_that_others_read(tmp_path: Path) -> None:
    """The file is predicted as the search predicted it, and the answer says what it gains over named wirings."""
    file = tmp_path / "best.toml"
    command = ("versus", "--model", "70b", "--gen", "16", "--search", str(EXAMPLE))
    answer = json.loads(run(*command, "--set", "ignore_memory=true", "--write", str(file), "--json").out)
    best = next(row for row in answer["rows"] if row["name"] == answer["best"])
    assert answer["toml"] == file.read_text()
    again = predict(Scenario(model="70b", gen=16), ["standard", str(file)])[str(file)]
    assert again.speedup.value == pytest.approx(best["speedup"])
    assert best["source"].startswith("arXiv 2501.06589")
    text = run(*command, "--explain").out
    assert "Of named wirings" in text
    assert "--write best.toml" in text


def test_a_written_wiring_is_not_to_be_written_again(tmp_path: Path) -> None:
    """Regression: the answer said to try --write after it had been given."""
    file = tmp_path / "b.toml"
    flags = ("--model", "8b", "--tp", "4", "--gen", "8", "--search", str(EXAMPLE), "--write", str(file), "--explain")
    text = run("versus", *flags).out
    assert "--write" not in text
    assert str(file) in "".join(text.split())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("search = 1", "search = 2", "search is 2: must be 1"),
        ("group = 2", "group = 0", "group is 0: must be a number of layers"),
        ("group = 2", "most_lost = true", "most_lost is True: must be a number"),
        ("delay = 1", "dealy = 1", "choices.ladder has no key 'dealy'"),
        ("delay = 1", 'at = "1:"', "choices.ladder has 'at': the search chooses the layers"),
        ('choice = "ladder"', 'choice = "lader"', "penalty[0].choice is 'lader': no choice"),
        ('"top"', '"up"', "penalty[0].where is 'up'"),
        ("[2, 4, 6]", "[2, 6, 4]", "penalty[0]: layers must ascend"),
        ("[2, 4, 6]", "[-2, 4, 6]", "penalty[0]: layers must ascend"),
        ("[2, 4, 6]", '[2, "b", 6]', "penalty[0]: layers must ascend"),
        ("[2, 4, 6]", "[0.5, 4, 6]", "penalty[0]: layers must ascend"),
        ('metric = "points"', "", "penalty[0] has no metric"),
        ('metric = "points"', "metric = 3", "penalty[0].metric is 3: must be text"),
        ('choice = "ladder"', 'choice = ["ladder"]', "penalty[0].choice is ['ladder']: must be text"),
        ("[0.0, 1.0, 4.0]", "[0.0, nan, 4.0]", "penalty[0]: layers must ascend"),
        ("[0.0, 1.0, 4.0]", '[0.0, "a", 4.0]', "penalty[0]: layers must ascend"),
        ("[[penalty]]", "[penalty]", "penalty must be tables"),
        (PENALTY, "[[penalty.a]]", "penalty must be tables"),
        ("group = 2", "most_lost = nan", "most_lost is nan: must be a number"),
        ("ladder = {", "standard = {", "choices: 'standard' cannot be a name"),
        ("ladder = {", '"" = {', "choices: '' cannot be a name"),
        ("lost = [0.0, 1.0, 4.0]", "lost = 1.0", "penalty[0]: layers must ascend"),
        ("[[penalty]]", f"{PENALTY}[[penalty]]", "two penalties are of one choice"),
        ("{ delay = 1 }", "{}", ""),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "space.toml"
    file.write_text(SPACE.replace(old, new, 1))
    if not message:
        assert list(read_space(file).choices) == ["half"]
        return
    with pytest.raises(WiringError) as caught:
        read_space(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_flags_that_search_does_not_take() -> None:
    assert "--search: finds a wiring alone" in run("versus", "--search", str(EXAMPLE), "--variant", "ladder").err
    assert "--write: there is nothing to write" in run("versus", "--write", "a.toml").err
    assert "--write 'best': must end in .toml" in run("versus", "--search", str(EXAMPLE), "--write", "best").err


def test_what_explain_has_besides_is_counted(tmp_path: Path) -> None:
    """Regression: "1 more wirings", and "0 more wirings" where nothing is faster."""
    nothing = tmp_path / "space.toml"
    nothing.write_text("search = 1\n[choices]\nnothing = { delay = 0 }\n")
    assert "more wiring" not in run("versus", "--model", "8b", "--gen", "4", "--search", str(nothing)).out
    assert (counted_text(1, "more wiring"), counted_text(2, "more wiring")) == ("1 more wiring", "2 more wirings")
