"""The notebook shows what its cells give now, in few bytes, and raises nothing."""

import json

import pytest

from tests.support.notebook import TOUR, executed, outputs

# a page of text and a picture; a copy of plotly.js alone has 4 MB
MAX_BYTES = 100_000


@pytest.mark.slow
def test_the_tour_shows_what_its_cells_give_now() -> None:
    stored = json.loads(TOUR.read_text("utf-8"))
    assert outputs(stored) == outputs(executed(TOUR))
    assert all(outputs(stored)[number] for number in range(len(outputs(stored))))
    assert TOUR.stat().st_size < MAX_BYTES
