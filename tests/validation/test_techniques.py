"""Gains of techniques against published ones, as docs/evidence.md has them."""

from benchmarks.techniques import Gain, published, tokenweave


def mean(gains: list[Gain], of: str) -> float:
    return sum(abs(getattr(gain, of)) for gain in gains) / len(gains)


def same_sign(gain: Gain) -> bool:
    return (gain.measured > 1.0) == (gain.predicted > 1.0)


def test_prompts_in_two_parts_with_fused_norms() -> None:
    """TokenWeave: eager vLLM, whose launches are fitted to the first of these rows.

    At the power limit of its H100s, as prefills without all-reduces have it, which neither communicate nor split: 0.83,
    as an H200, leaves them 4 % too short, 0.78 without a bias. The page has the gains at 0.83.
    """
    gains = tokenweave(sustained_rate=0.78)
    assert len(gains) == 14
    assert all(map(same_sign, gains))
    assert mean(gains, "error") <= 0.04
    assert max(abs(gain.error) for gain in gains) <= 0.08
    long = [gain for gain in gains if int(gain.cells[1]) >= 4096]
    assert mean(long, "error") <= 0.03
    # more than all-reduces for nothing gain, as measured
    for gain in long:
        measured_bound, predicted_bound = float(gain.cells[2]), float(gain.cells[3])
        if gain.measured > measured_bound:
            assert gain.predicted > predicted_bound


def test_published_gains() -> None:
    gains = published()
    assert len(gains) == 11
    assert sum(map(same_sign, gains)) >= 10
    assert mean(gains, "points") <= 5.0
