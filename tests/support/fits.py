"""Whether the text of an answer fits the room that it has."""

import re

from ladder_sim.answer import Answer
from ladder_sim.report.report import LINES, WIDTH


def lines_of(answer: Answer) -> list[str]:
    """Return the lines of an answer, of which there are few and none is long."""
    lines = str(answer).splitlines()
    assert len(lines) <= LINES, answer
    assert max(map(len, lines)) <= WIDTH, answer
    assert " ".join(lines).startswith(answer.summary)
    # all of it stands before what explains it, but for what was cut
    assert answer.explain().startswith("\n".join(lines))
    assert not re.search(r"\b(nan|inf)\b", str(answer))
    return lines
