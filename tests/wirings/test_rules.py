"""Wiring files: what is refused, with the line to write, and named wirings as files."""

import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from ladder_sim.errors import UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import State
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim.wirings.names import FAMILIES, OwnWiring, canonical, canonical_names, is_variant, own_wiring, parse
from ladder_sim.wirings.rules import WiringError
from tests.support.commands import run
from tests.support.strategies import laid_out
from tests.support.wirings import NEW, equation, files, rules_of

LAYERS = 32


def refused(rules: str, *, layers: int = LAYERS, name: str = "mine") -> tuple[str, str]:
    """Message and hint for a file that is read, or laid out."""
    table = {"name": name, "wiring": 1} | tomllib.loads(rules)
    with pytest.raises(WiringError) as caught:
        lay_out(own_wiring(table, f"{name}.toml"), layers)
    assert caught.value.exit_code == 2
    return caught.value.message.removeprefix(f"{name}.toml: "), caught.value.hint


@pytest.mark.parametrize(
    ("rules", "message", "hint"),
    [
        (
            "[[layers]]\ndelay = 1\n[[layers]]\nmlp.dealy = 1",
            "layers[1].mlp has no key 'dealy'",
            "did you mean 'delay'?",
        ),
        (
            "[[layers]]\nmlp.delay = -1",
            "layers[0].mlp.delay is -1: that output does not exist yet",
            "0 waits for all",
        ),
        (
            '[[layers]]\nmlp.instead = "own"',
            "layers[0].mlp.instead has no effect at delay 0",
            "mlp.delay = 1, or remove it",
        ),
        (
            '[[layers]]\n[[layers]]\n[[layers]]\nat = "40:"\ndelay = 1',
            'layers[2].at "40:" selects none of 32 layers',
            '"50%:" fits any depth',
        ),
        (
            "[[layers]]\ndelay = 64",
            "delay 64 in 64 blocks: only the LM head would read a sum",
            "at most 62",
        ),
        (
            '[[layers]]\nat = "31"\nattention.weight = 0',
            "attention of layer 31: nobody awaits its sum (weight 0)",
            'attention.reduce = "none"',
        ),
        (
            '[[layers]]\nat = "-3:"\nreduce = "none"',
            "ranks differ before the LM head: layers 29-31 are open",
            'head = "mean", or reduce the last MLP',
        ),
        (
            '[[layers]]\nattention.delay = 1\n[[layers]]\nat = "24:"\nfused = {}',
            "layer 24: layers[0] sets attention, layers[1] fused",
            'at = ":24" in layers[0]',
        ),
        (
            '[[layers]]\nmlp.lane = "m"\n[[layers]]\nat = "7"\nattention = { reduce = "none", weight = { m = 2 } }',
            "layer 7: an open output has 2 lane weights, one sum",
            'attention.reduce = "sum"',
        ),
        (
            '[[layers]]\nat = ":2"\npercent = 50\n[[layers]]\nat = "2:"\npercent = 100',
            "attention of layer 2: its sum and open outputs have other channels",
            "attention.percent = 50",
        ),
        (
            '[[layers]]\ndelay = 2\ninstead = "shared"',
            "attention of layer 0: only the newest output's shared experts can be read",
            "attention.delay = 1",
        ),
        ("[[layers]]\nweight = { y = 1 }", "attention of layer 0: no block reads lane 'y'", 'mlp.lane = "y"'),
        (
            '[[layers]]\nreduce = "sums"',
            'layers[0].reduce is \'sums\': must be "sum", "mean", "none"',
            'reduce = "sum"',
        ),
        ("[[layers]]\npercent = 0", "layers[0].percent is 0: must be a whole number from 1 to 100", 'reduce = "none"'),
        ("layer = 1", "the file has no key 'layer'", "did you mean 'layers'?"),
        ('[[layers]]\nat = "x"', "layers[0].at is 'x': must be a slice, or a list of numbers", 'at = "-16:"'),
    ],
)
def test_a_wrong_file_is_answered_with_the_line_to_write(rules: str, message: str, hint: str) -> None:
    assert refused(rules) == (message, hint)


def test_a_hint_mends_the_file() -> None:
    for wrong, right in (
        ("mlp.dealy = 1", "mlp.delay = 1"),
        ('mlp.instead = "own"', "mlp.delay = 1"),
        ('at = "40:"\ndelay = 1', 'at = "50%:"\ndelay = 1'),
        ("delay = 64", "delay = 62"),
        ('at = "31"\nattention.weight = 0', 'at = "31"\nattention.weight = 0\nattention.reduce = "none"'),
    ):
        refused(f"[[layers]]\n{wrong}")
        lay_out(own_wiring(tomllib.loads(f"wiring = 1\n[[layers]]\n{right}"), "mine.toml"), LAYERS)


def test_a_named_wirings_name_is_taken() -> None:
    said = refused("[[layers]]\ndelay = 2", name="ladder")
    assert said == ("name 'ladder' is a named wiring with other rules", 'name = "my-ladder"')
    same = own_wiring(tomllib.loads('wiring = 1\nname = "ladder"\n[[layers]]\ndelay = 1'), "mine.toml")
    assert lay_out(same, LAYERS).layers == lay_out("ladder", LAYERS).layers


def test_what_a_model_or_plan_does_not_have(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('wiring = 1\n[[layers]]\ndelay = 1\ninstead = "own"\n')
    with pytest.raises(UsageError, match="parts of sums, which the model normalises as a whole") as caught:
        predict(Scenario(model="gemma-3-27b", stack="vllm", tp=4), variants=[str(file)])
    assert caught.value.hint == 'instead = "nothing"'
    with pytest.raises(UsageError, match="cannot be split") as caught:
        predict(Scenario(model="8b", stack="vllm", tp=4, sp=True), variants=[str(file)])
    assert "leave out sp" in caught.value.hint


def test_the_command_line_says_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("wiring = 1\n[[layers]]\nmlp.dealy = 1\n")
    ran = run("predict", "--model", "8b", "--variant", str(file))
    assert ran.code == 2
    assert "layers[0].mlp has no key 'dealy'" in ran.err
    assert "did you mean 'delay'?" in ran.err
    file.write_text("wiring = 1\n[[layers]\n")
    ran = run("predict", "--model", "8b", "--variant", str(file))
    assert ran.code == 2
    assert "not valid TOML" in ran.err
    assert run("predict", "--model", "8b", "--variant", str(tmp_path / "none.toml")).code == 2


# named wirings as files


@given(laid_out())
def test_the_file_of_a_named_wiring_has_its_rules(case: tuple[str, int]) -> None:
    variant, layers = case
    named = parse(variant)
    table = tomllib.loads(named.toml)
    assert table["name"] == variant
    assert own_wiring({**table, "name": "other"}, "other.toml").variant.family.head == named.family.head
    if variant in ("drop:0", "delayed:0") or (variant.startswith("hybrid-delayed:0")):
        # that changes nothing, which a file is refused for
        with pytest.raises(WiringError, match=r"no effect|selects none"):
            own_wiring(table, "mine.toml").variant.place(layers)
        return
    assert own_wiring(table, "mine.toml").variant.place(layers) == named.place(layers)


@given(laid_out())
def test_rules_by_the_numbers_of_layers_are_the_same(case: tuple[str, int]) -> None:
    variant, layers = case
    table = parse(variant).expanded(layers)
    assert own_wiring(table, "mine.toml").variant.place(layers) == parse(variant).place(layers)


@given(files())
def test_what_list_shows_is_the_equation(case: tuple[str, int]) -> None:
    wiring: Wiring = lay_out(*case)
    wanted = equation(rules_of(*case))
    for read, right in zip(wiring.reads(), wanted, strict=True):
        # outputs that count nothing
        shown = {output for output in range(len(wanted) - 1) if wiring.blocks[output][1].adds}
        assert {j: "sum" if form == "part" else form for j, form in read.items() if j in shown} == {
            j: form for j, form in right.items() if j in shown
        }


def test_every_family_is_one_file() -> None:
    folder = Path(__file__).parents[2] / "ladder_sim" / "wirings" / "data"
    assert {tomllib.loads(file.read_text())["name"] for file in folder.glob("*.toml")} == set(FAMILIES)
    assert len(FAMILIES) == 11


# files as variants


def saved(folder: Path, name: str, text: str) -> str:
    file = folder / f"{name}.toml"
    file.write_text(text)
    return str(file)


def test_a_file_is_its_path_and_what_was_read(tmp_path: Path) -> None:
    path = saved(tmp_path, "mine", NEW["ladder-mlp"])
    own = canonical(path)
    assert isinstance(own, OwnWiring)
    assert own == path == str(own)
    assert is_variant(path)
    assert pickle.loads(pickle.dumps(own)) == own
    assert canonical_names([path, "Ladder", path]) == (path, "ladder")
    Path(path).write_text(NEW["upper-ladder-2"])
    changed = canonical(path)
    assert changed != own
    assert lay_out(changed, LAYERS).layers != lay_out(own, LAYERS).layers


def test_a_changed_file_is_predicted_anew(tmp_path: Path) -> None:
    scenario = Scenario(model="8b", stack="vllm", tp=8)
    times: list[Any] = []
    for text in (NEW["ladder-mlp"], NEW["kraken-4"], NEW["ladder-mlp"]):
        path = saved(tmp_path, "mine", text)
        times.append(predict(scenario, variants=[path])[path].tpot_s)
    assert times[0] == times[2] != times[1]


@pytest.mark.parametrize("name", NEW)
def test_new_wirings_are_predicted(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path, name, NEW[name])
    answer = predict(Scenario(model="8b", stack="vllm", tp=8), variants=["standard", path, "upper-bound"])
    assert answer["upper-bound"].tpot_s < answer[path].tpot_s
    ran = run("list", path)
    assert ran.code == 0
    assert "attention0 reads x" in ran.out


def test_the_page_reads_no_files(tmp_path: Path) -> None:
    path = saved(tmp_path, "mine", NEW["ladder-mlp"])
    with pytest.raises(UsageError, match="unknown variant"):
        State.parse(f"variants={path}", Allowlist.of())
    with pytest.raises(UsageError, match="unknown variant"):
        State.parse(f"over={path}", Allowlist.of())
