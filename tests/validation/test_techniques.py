"""Gains of techniques against published ones, as docs/evidence.md has them."""

from benchmarks.techniques import Gain, published, tokenweave


def mean(gains: list[Gain], of: str) -> float:
    return sum(abs(getattr(gain, of)) for gain in gains) / len(gains)


def same_sign(gain: Gain) -> bool:
    return (gain.measured > 1.0) == (gain.predicted > 1.0)


def test_prompts_in_two_parts_with_fused_norms() -> None:
    """TokenWeave: eager vLLM, whose launches are fitted to the first of these rows.

    4.3 %, long prompts 4.5, since the power limit is measured on another GPU; 3.5 and 3 while it was fitted to these.
    """
    gains = tokenweave()
    assert len(gains) == 14
    assert all(map(same_sign, gains))
    assert mean(gains, "error") <= 0.045
    assert max(abs(gain.error) for gain in gains) <= 0.08
    long = [gain for gain in gains if int(gain.cells[1]) >= 4096]
    assert mean(long, "error") <= 0.045
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
