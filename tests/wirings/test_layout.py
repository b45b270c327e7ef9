"""Named wirings against the equations of the papers, and layouts of them."""

import re
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.errors import LadderSimError, UnknownNameError, UsageError
from ladder_sim.prediction import default_variants
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import DEFAULT_VARIANTS, FAMILIES, canonical, parse
from tests.conftest import REPO
from tests.support.strategies import EMBEDDING, LAYERS, State, equation, laid_out
from tests.support.wirings import equation as by_rules


def contributions(variant: str, layers: int, ladder_layers: tuple[int, ...] = ()) -> list[dict[int, State]]:
    """What each block reads of which outputs, and the LM head, by the rules in the variant's file."""
    rules = [each.rule for each in parse(variant).place(layers, ladder_layers)]
    reads: list[dict[int, State]] = []
    for first, last in zip(by_rules(rules, 0), by_rules(rules, 99), strict=True):
        assert first.keys() == last.keys()
        states = {j: state if state == last[j] else "mixed" for j, state in first.items()}
        reads.append({EMBEDDING: "sum", **states})
    return reads


def read_by(variant: str, layers: int) -> list[set[int]]:
    """The same, whatever form an output is read in."""
    return [set(read) for read in contributions(variant, layers)]


@given(laid_out())
def test_every_block_reads_what_the_equations_say(case: tuple[str, int]) -> None:
    variant, layers = case
    reads = contributions(variant, layers)
    assert reads == equation(variant, layers)
    assert set(reads[-1]) == {EMBEDDING, *range(len(reads) - 1)}


@given(laid_out())
def test_layers_hold_their_blocks(case: tuple[str, int]) -> None:
    variant, layers = case
    plan = lay_out(variant, layers)
    assert plan.name == variant
    assert [layer.index for layer in plan.layers] == list(range(layers))
    both = parse(variant).layers(layers) if "parallel" in variant else ()
    for layer in plan.layers:
        parts = ("both",) if layer.index in both else ("attention", "mlp")
        assert tuple(block.part for block in layer.blocks) == parts
        assert layer.repeats == 1


@pytest.mark.parametrize(
    ("variant", "per_layer"),
    [
        *(("standard", 2), ("ladder", 2), ("hybrid-ladder:5", 2), ("parallel", 1), ("desync:1", 2), ("upper-bound", 0)),
        *(("ladder:3", 2), ("delayed:2", 2), ("track:1", 1), ("drop:12", 1), ("partial:50", 2), ("farskip", 2)),
    ],
)
def test_all_reduces_per_layer(variant: str, per_layer: int) -> None:
    for layer in lay_out(variant, 12).layers:
        assert sum(block.reduces for block in layer.blocks) == per_layer


@given(LAYERS, st.data())
def test_desync_reduces_every_nth_block_and_the_last(layers: int, data: st.DataObject) -> None:
    every = data.draw(st.integers(1, 2 * layers))
    blocks = [block for layer in lay_out(f"desync:{every}", layers).layers for block in layer.blocks]
    reduced = {number for number, block in enumerate(blocks, start=1) if block.reduces}
    assert reduced == {number for number in range(1, 2 * layers + 1) if number % every == 0} | {2 * layers}
    # a sum of several outputs has the rank's residual; those of one output have nothing more
    assert {block.entry for block in blocks if block.reduces} == {"stream" if every > 1 else "added"}


def test_desync_in_words() -> None:
    """`desync:2` after each MLP, `desync:4` after every second MLP, `desync:1` is standard."""
    two = [block.reduces for layer in lay_out("desync:2", 6).layers for block in layer.blocks]
    four = [block.reduces for layer in lay_out("desync:4", 6).layers for block in layer.blocks]
    assert two == [False, True] * 6
    assert four == [False, False, False, True] * 3
    one, standard = lay_out("desync:1", 6), lay_out("standard", 6)
    assert (one.layers, one.final_joins) == (standard.layers, standard.final_joins)


def test_ladder_in_words() -> None:
    """In layer 0 both blocks read the embedding; at the end both outputs are waited for."""
    reads = read_by("ladder", 3)
    assert reads[:4] == [{EMBEDDING}, {EMBEDDING}, {EMBEDDING, 0}, {EMBEDDING, 0, 1}]
    assert lay_out("ladder", 3).final_joins == (2, 1)


def test_hybrid_boundary_in_words() -> None:
    """The first ladder attention does not wait for the last standard MLP; the first ladder MLP does."""
    reads = read_by("hybrid-ladder:1", 3)
    last_standard_attention, last_standard_mlp, first_ladder_attention = 2, 3, 4
    assert max(reads[first_ladder_attention]) == last_standard_attention
    assert max(reads[first_ladder_attention + 1]) == last_standard_mlp
    assert reads[first_ladder_attention] == reads[last_standard_mlp]


@given(LAYERS)
def test_hybrid_of_all_layers_is_ladder(layers: int) -> None:
    hybrid, ladder = lay_out(f"hybrid-ladder:{layers}", layers), lay_out("ladder", layers)
    assert (hybrid.layers, hybrid.final_joins) == (ladder.layers, ladder.final_joins)


@given(st.integers(2, 24).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_a_configs_own_ladder_layers(case: tuple[int, set[int]]) -> None:
    layers, listed = case
    reads = contributions(f"hybrid-ladder:{len(listed)}", layers, tuple(sorted(listed)))
    assert reads == equation("ladder", layers, frozenset(listed))
    assert set(reads[-1]) == {EMBEDDING, *range(2 * layers)}


def test_another_count_than_the_configs_list_means_the_last_layers() -> None:
    assert lay_out("hybrid-ladder:2", 8, (0, 3, 5)) == lay_out("hybrid-ladder:2", 8)


def test_ladder_layers_choose_the_variant(tiny_ladder: ModelSpec) -> None:
    scenario = Scenario(model=tiny_ladder, tp=8)
    assert default_variants(scenario) == ("standard", "parallel", "hybrid-ladder:2", "upper-bound")
    assert default_variants(Scenario(model="8b")) == DEFAULT_VARIANTS


@pytest.fixture
def tiny_ladder() -> ModelSpec:
    config = {
        "model_type": "llamaLadder",
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "vocab_size": 1024,
        "max_position_embeddings": 4096,
        "ladder_layers": [0, 2],
    }
    return ModelSpec.from_hf(config, name="tiny", source="test")


# condensing


@given(laid_out(), st.integers(2, 6))
def test_condensed_layers_stand_for_all(case: tuple[str, int], keep: int) -> None:
    full = lay_out(*case)
    short = full.condense(keep)
    assert sum(layer.repeats for layer in short.layers) == len(full.layers)
    assert short.final_joins == full.final_joins
    # expanding what stands for several gives back every layer's blocks in order
    expanded = []
    for repeats, period in groupby(short.layers, key=lambda layer: layer.repeats):
        blocks = [layer.blocks for layer in period]
        # those that stand for themselves only come in any number
        expanded += blocks * repeats
    assert expanded == [layer.blocks for layer in full.layers]


@given(laid_out(), st.integers(4, 6))
def test_condensed_layers_have_a_twin(case: tuple[str, int], keep: int) -> None:
    short = lay_out(*case).condense(keep)
    for repeats, run in groupby(range(len(short.layers)), key=lambda position: short.layers[position].repeats):
        positions = list(run) if repeats > 1 else []
        for position in positions:
            twin = short.layers[position - len(positions)]
            assert twin.repeats == 1
            assert twin.blocks == short.layers[position].blocks


@given(laid_out())
def test_condensing_leaves_short_models_alone(case: tuple[str, int]) -> None:
    full = lay_out(*case)
    assert full.condense(100).layers == full.layers


def test_condensed_size_does_not_grow_with_the_model() -> None:
    for variant in (
        *("standard", "parallel", "ladder", "hybrid-ladder:40", "desync:6", "upper-bound", "ladder:3", "delayed:4"),
        *("track:2", "drop:30", "partial:50", "farskip:own", "hybrid-delayed:1:40"),
    ):
        assert len(lay_out(variant, 1000).condense(4).layers) == len(lay_out(variant, 100).condense(4).layers) <= 16


# names


def test_the_table_of_the_documentation_is_that_of_the_families() -> None:
    text = (REPO / "docs" / "model.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|.*\| ([^|]+) \|$", text[text.index("## Wirings") :].partition("\n## ")[0], re.M)
    assert rows == [(family.pattern, family.paper or "-") for family in FAMILIES.values()]


def test_names_of_hybrids_and_defaults() -> None:
    for name in ("ladder:3", "hybrid-ladder:2:8", "hybrid-farskip:own:8", "hybrid-parallel:3", "partial:7", "drop:0"):
        assert canonical(f" {name.upper()} ") == name
    assert canonical("hybrid-ladder:1:8") == "hybrid-ladder:8"
    assert canonical("ladder:01") == "ladder"


@given(laid_out())
def test_a_name_means_itself(case: tuple[str, int]) -> None:
    variant, layers = case
    assert canonical(variant) == variant
    parse(variant).check(layers)
    assert parse(variant).sentence.endswith(".")


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("standard", "standard"),
        (" Upper-Bound ", "upper-bound"),
        ("HYBRID-LADDER:16", "hybrid-ladder:16"),
        ("desync:004", "desync:4"),
    ],
)
def test_canonical(given_name: str, name: str) -> None:
    assert canonical(given_name) == name


@pytest.mark.parametrize(
    ("name", "nearest"), [("laddr", "ladder"), ("upperbound", "upper-bound"), ("paralel", "parallel")]
)
def test_unknown_variant_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=name) as caught:
        canonical(name)
    assert f"'{nearest}'" in caught.value.hint


@pytest.mark.parametrize("name", ["", "x", ":", ":4", "ladder-hybrid:3", "ladder 4"])
def test_no_such_variant(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        canonical(name)
    assert caught.value.hint


@pytest.mark.parametrize(
    "name",
    [
        "hybrid-ladder",
        "hybrid-ladder:",
        "hybrid-ladder:0",
        "hybrid-ladder:-1",
        "hybrid-ladder:1.5",
        "hybrid-ladder:x",
        "hybrid-ladder:²",
        "desync",
        "desync:0",
        "desync:+2",
        "desync:1e3",
        "desync:1:2",
    ],
)
def test_parameter_must_be_a_positive_whole_number(name: str) -> None:
    with pytest.raises(UsageError, match="positive whole number") as caught:
        canonical(name)
    assert f"'{name.partition(':')[0]}:" in caught.value.hint


@pytest.mark.parametrize("name", ["parallel:3", "standard:", "upper-bound:1", "parallel:2"])
def test_parameter_not_wanted(name: str) -> None:
    with pytest.raises(UsageError, match="takes no parameter"):
        canonical(name)


@pytest.mark.parametrize("digits", ["9" * 30, "9" * 5000])
@pytest.mark.parametrize("family", ["hybrid-ladder", "desync"])
def test_huge_parameter(family: str, digits: str) -> None:
    with pytest.raises(LadderSimError):
        lay_out(f"{family}:{digits}", 80)


@pytest.mark.parametrize(("name", "most"), [("hybrid-ladder:81", "hybrid-ladder:80"), ("desync:161", "160")])
def test_parameter_beyond_the_model(name: str, most: str) -> None:
    with pytest.raises(UsageError, match=r"80 layers|160 blocks") as caught:
        lay_out(name, 80)
    assert most in caught.value.hint
