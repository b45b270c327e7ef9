"""Recorded requests: three formats, and files that are damaged, out of order, absurd or no traces at all."""

import contextlib
import gzip
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given

from ladder_sim.errors import UsageError
from ladder_sim.serve import Lengths, Trace, Traffic
from tests.support.strategies import damaged_text

MOONCAKE = "".join(
    json.dumps({"timestamp": at, "input_length": 1200, "output_length": gen, "hash_ids": [0, 1, 7]}) + "\n"
    for at, gen in ((27000, 5), (27500, 9))
)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""


def read(tmp_path: Path, text: str, **how: float) -> list[tuple[float, int, int]]:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return [(round(each.arrival_s, 6), each.prompt, each.gen) for each in Trace(path=path, **how)]  # type: ignore[arg-type]


def test_the_format_is_told_by_the_first_line(tmp_path: Path) -> None:
    assert read(tmp_path, MOONCAKE) == [(0.0, 1200, 5), (0.5, 1200, 9)]
    assert read(tmp_path, AZURE) == [(0.0, 374, 44), (0.052, 396, 109)]
    # failed requests have no answer
    assert read(tmp_path, BURSTGPT) == [(0.0, 472, 18), (113.0, 417, 276)]
    assert read(tmp_path, BURSTGPT, speed=2.0)[1][0] == 56.5
    assert len(read(tmp_path, MOONCAKE, requests=1)) == 1


def test_parts_of_prompts_have_names(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(MOONCAKE, encoding="utf-8")
    first, _ = Trace(path=path)
    assert (first.prefix, first.prefix_tokens, first.shared_tokens) == ((0, 1, 7), 512, 1200)


def test_a_trace_is_not_read_before_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(MOONCAKE + "damaged", encoding="utf-8")
    assert len(list(itertools.islice(Trace(path=path), 2))) == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "unknown format, its first line is 'a,b'"),
        (MOONCAKE[:-30], "line 2: cannot be read"),
        (MOONCAKE.replace("27500", "26000"), "line 2: comes 1 s before the line above: must be in order"),
        (MOONCAKE.replace("1200", "-5"), "line 1: prompt of -5 tokens: must be 1 to"),
        (MOONCAKE.replace("27500", "1e300"), "line 2: comes 1e.* must be within ten years"),
        (MOONCAKE.replace("27500", "NaN"), "line 2: comes nan"),
        (AZURE.replace("374", "four"), "line 2: cannot be read"),
        (AZURE.replace("374,44", "374"), "line 2: cannot be read"),
        (BURSTGPT.replace("18", "1e30"), "line 2: answer of"),
        (AZURE.splitlines()[0], "holds no request"),
        ("{" * 5_000_000, "is longer than"),
        (MOONCAKE + AZURE, "line 3: cannot be read"),
        (AZURE + BURSTGPT, "line 4: cannot be read"),
        (MOONCAKE + '{"metadata": {}, "metrics": {}}', "line 3: cannot be read .KeyError"),
        (MOONCAKE.replace("[0, 1, 7]", "[[0], 1, 7]"), "whole numbers"),
        (MOONCAKE.replace("[0, 1, 7]", '"017"'), "whole numbers"),
        (MOONCAKE.replace("5,", "true,"), "whole numbers"),
        (MOONCAKE.replace("27000", "-1e400"), "line 1: comes"),
        (MOONCAKE.replace("1200", "100000001"), "line 1: prompt of 100000001 tokens"),
        (MOONCAKE.replace("27500", "1" * 400), "line 2: cannot be read .OverflowError"),
        (BURSTGPT.replace("472", "1e999"), "line 2: cannot be read"),
        (AZURE.replace("2023-11-16 18:17:03", "2023-13-16 18:17:03"), "line 2: cannot be read"),
        ("\x00" * 1000, "unknown format"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, shown: str) -> None:
    with pytest.raises(UsageError, match=shown):
        read(tmp_path, text)


def test_a_gzipped_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    assert [each.prompt for each in Trace(path=path)] == [374, 396]
    rows = AZURE.encode() + 1000 * AZURE.splitlines()[-1].encode()
    # a shorter one, and another checksum
    for damaged in (gzip.compress(rows)[:-30], gzip.compress(AZURE.encode())[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="gzip file that is cut off or damaged"):
            list(Trace(path=path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, shown in ((tmp_path / "none", "no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(UsageError, match=shown):
            list(Trace(path=path))


@given(damaged_text(AZURE) | damaged_text(MOONCAKE) | damaged_text(BURSTGPT))
def test_a_damaged_trace_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace"
    path.write_bytes(content)
    with contextlib.suppress(UsageError):
        requests = list(Trace(path=path))
        assert requests
        assert all(request.prompt >= 1 and request.gen >= 1 for request in requests)


def traffic(**given: float) -> Traffic:
    lengths = {"prompt": Lengths.parse("uniform:100:300"), "gen": Lengths.parse("lognormal:50:0.5")}
    return Traffic(**{"rate": 4.0, "requests": 5000, **lengths, **given})  # type: ignore[arg-type]


def test_requests_come_at_their_rate_and_are_the_same_for_the_same_seed() -> None:
    for burstiness in (0.5, 1.0, 4.0):
        requests = list(traffic(burstiness=burstiness))
        assert requests == list(traffic(burstiness=burstiness))
        gaps_s = [second.arrival_s - first.arrival_s for first, second in itertools.pairwise(requests)]
        mean_s = sum(gaps_s) / len(gaps_s)
        assert mean_s == pytest.approx(0.25, rel=0.06)
        spread = sum((gap_s / mean_s - 1.0) ** 2 for gap_s in gaps_s) / len(gaps_s)
        assert spread == pytest.approx(1.0 / burstiness, rel=0.15)
        assert all(100 <= request.prompt <= 300 for request in requests)
        mean = sum(request.gen for request in requests) / len(requests)
        assert mean == pytest.approx(traffic().gen.mean, rel=0.05)
    assert list(traffic(seed=1)) != list(traffic())


@pytest.mark.parametrize(
    "text", ["0", "-5", "x", "uniform:9", "uniform:9:3", "lognormal:9:-1", "lognormal:9:9", "nan", ""]
)
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="lengths"):
        Lengths.parse(text)
