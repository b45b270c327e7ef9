"""Published figures of quality: what the file holds, and what is said of a wiring."""

import json
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from ladder_sim.quality.published import TINY, Measured, published, quality_of, without_figures
from ladder_sim.report.quality import quality_report
from ladder_sim.wirings.names import FAMILIES, Family, canonical
from tests.support.commands import run


def measured(**changed: object) -> Measured:
    row = next(row for row in published() if row.metric == "WikiText perplexity")
    return Measured(**({name: getattr(row, name) for name in Measured.__slots__} | changed))


def printed(rows: Sequence[Measured]) -> str:
    """On a screen of 100 columns."""
    console = Console(width=100)
    with console.capture() as written:
        console.print(quality_report(rows, ()))
    return written.get()


def test_the_file_keeps_its_rules() -> None:
    rows = published()
    assert len({(row.wiring, row.model, row.tokens, row.recipe, row.metric, row.source) for row in rows}) == len(rows)
    for row in rows:
        assert canonical(row.wiring) == row.wiring
        assert row.model
        assert row.recipe
        assert row.metric
        assert row.source
        assert row.parameters > 1e5
        assert row.tokens >= 0
        # a paper's number, or a page of the project that measured it
        assert re.search(r"arXiv \d{4}\.\d{5}|README|docs/adopt.md", row.source)
    # every wiring of which the averages or perplexities are asked for has one
    assert {row.wiring for row in rows} == {row.wiring for row in rows if row.sums_up}


@pytest.mark.parametrize(
    ("value", "higher_is_better", "is_worse"), [(1, True, True), (1, False, False), (3, True, False), (3, False, True)]
)
def test_which_way_is_worse(value: float, higher_is_better: bool, is_worse: bool) -> None:
    row = measured(value=float(value), standard=2.0, higher_is_better=higher_is_better)
    assert row.is_worse is is_worse
    assert (row.difference, measured(standard=None).difference) == (value - 2.0, None)
    assert not measured(value=2.0, standard=2.0).is_worse


def test_a_sentence_has_the_numbers_of_the_largest_model() -> None:
    quality = quality_of("Farskip")
    assert quality is not None
    assert (
        "Llama-4-Scout, under 10 B tokens, self-distilled: average of 11 tasks 75.1 (standard 76)" in quality.sentence
    )
    assert "fine-tuned: average of 11 tasks 65.6 (standard 76)" in quality.sentence
    assert {row.wiring for row in quality.rows} == {"farskip"}


def test_relatives_are_not_taken_for_the_wiring() -> None:
    hybrid, deeper = quality_of("hybrid-ladder:40"), quality_of("ladder:2")
    assert hybrid is not None
    assert deeper is not None
    assert hybrid.rows == deeper.rows == ()
    assert hybrid.sentence.startswith("no published quality of hybrid-ladder:40 is known here; of hybrid-ladder:16: ")
    assert deeper.sentence.startswith("no published quality of ladder:2 is known here; of ladder: ")


def test_tiny_models_are_listed_and_sum_up_nothing() -> None:
    parallel, desync = quality_of("parallel"), quality_of("desync:4")
    assert parallel is not None
    assert desync is not None
    assert {row.model for row in parallel.rows} == {"4 layers of 96", "8 layers of 128", "9 layers of 192"}
    assert parallel.sentence == "no published quality of parallel is known here, only of tiny models"
    assert parallel.summary == desync.summary == "of tiny models alone"
    assert desync.sentence == "no published quality of desync:4 is known here"


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_wiring_has_a_sentence_with_numbers_or_says_that_there_are_none(family: Family) -> None:
    name = family.name + (f":{family.parameter.example}" if family.parameter else "")
    quality = quality_of(name)
    assert (quality is None) == (not family.retrained)
    if quality is not None:
        assert ("(standard " in quality.sentence or "perplexity" in quality.sentence) == any(
            row.parameters >= TINY for row in quality.rows + quality.relatives
        )
        assert (family.shortest in without_figures()) == (not quality.rows and not quality.relatives)
        assert "parity" not in quality.sentence


def test_a_figure_stands_next_to_what_it_is_of_on_a_narrow_screen() -> None:
    heads = [line for line in printed(published()).splitlines() if line.startswith("model")]
    assert len(heads) > 3
    assert all(line.split()[-1] == "difference" for line in heads)


def test_a_spread_is_next_to_its_value() -> None:
    assert " 18.42 +- 0.2 " in printed([measured(spread=0.2)])


def test_the_command_says_what_is_published_and_what_not() -> None:
    every = run("list", "quality").out
    assert "no published quality is known here of track:D, drop:K, partial:P" in every
    assert "read in a copy" in every
    assert "+0.42 worse" in every
    assert "-0.12 better" in every
    assert "parity" not in every
    # not again for each of its figures
    assert every.count("Transformer 3.5B, 3.5 B  100 B tokens, from scratch on FineWeb-edu") == 1
    answer = json.loads(run("list", "quality", "ladder:2", "--json").out)
    assert answer["unknown"] == ["ladder:2"]
    assert {row["wiring"] for row in answer["rows"]} == {
        "ladder",
        *(f"hybrid-ladder:{last}" for last in (8, 15, 16, 20)),
    }
    nothing = json.loads(run("list", "quality", "track:4", "--json").out)
    assert (nothing["unknown"], nothing["rows"]) == (["track:4"], [])
    refused = run("list", "quality", "upper-bound")
    assert refused.code == 2
    assert "needs no training" in refused.err
