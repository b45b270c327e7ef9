"""Recorded requests: three formats, and files that are damaged, out of order, absurd or no traces at all."""

import contextlib
import gzip
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given

from ladder_sim.errors import UsageError
from ladder_sim.serving import Lengths, Trace, Traffic
from ladder_sim.specs.scenario import Scenario
from tests.conftest import DATA
from tests.support.commands import run
from tests.support.replicas import outcomes
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


SECONDS = DATA / "requests" / "requests_in_seconds_blocks_of_16.jsonl"


def test_units_are_known_by_what_is_in_a_trace() -> None:
    trace = Trace(path=SECONDS)
    requests = list(trace)
    assert trace.units == "times in seconds, a hash for each 16 tokens"
    assert requests[-1].arrival_s == pytest.approx(12.72 - 0.301)
    assert {request.prefix_tokens for request in requests} == {16}
    outcome = outcomes(Scenario(model="70b", tp=8, stack="vllm", concurrency=1), trace, ["standard"])["standard"]
    assert outcome.stable
    assert outcome.seconds("ttft") <= 0.073
    assert outcome.fields()["cached_prompt_share"] == pytest.approx(0.18, abs=0.005)


def test_what_no_server_answers_is_said(tmp_path: Path) -> None:
    """Regression: failed requests were left out, and prompts beyond the model's context run, without a word."""
    rows = [(0.1, 1000, 20), (0.2, 1000, 0), (0.3, 200_000, 20), (0.4, 1000, 0), (0.5, 1000, 20)]
    lines = [f'{{"timestamp": {at}, "input_length": {prompt}, "output_length": {gen}}}' for at, prompt, gen in rows]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    text = run("serve", "--model", "8b", "--tp", "2", "--trace", str(path), "--variant", "standard", "--json").out
    said = json.loads(text)["warnings"]
    assert "2 of 5 requests of the trace have no answer, and are left out" in said
    assert said.count("context of 200020 tokens: 'llama-3.1-8b' was made for 131072") == 1
    # rows after the last request that is read are not looked at
    assert [Trace(path=path, requests=count).failed for count in (1, 2, 3, None)] == [0, 1, 2, 2]


def test_the_answer_says_which_units_it_read() -> None:
    flags = ("--model", "8b", "--tp", "1", "--stack", "vllm", "--variant", "standard", "--trace", str(SECONDS))
    code, shown, _ = run("serve", *flags)
    assert code == 0
    assert "(times in seconds, a hash for each 16 tokens)" in shown
    assert json.loads(run("serve", *flags, "--json").out)["load"]["units"] == Trace(path=SECONDS).units


@pytest.mark.parametrize(
    ("line", "changes", "shown"),
    [
        (3, {"hash_ids": [1, 2, 3]}, "line 4: 3 hash ids for a prompt of 260 tokens: must be 17, one for each 16"),
        (5, {"input_length": 2600}, "line 6: 9 hash ids for a prompt of 2600 tokens: must be 163"),
        (7, {"total_tokens": 1}, "line 8: total_tokens is 1: must be 260 . 119 tokens"),
        (9, {"timestamp": "2026-11-26"}, "line 10: cannot be read: could not convert string to float"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(
    tmp_path: Path, line: int, changes: dict[str, object], shown: str
) -> None:
    rows = [json.loads(row) | {"total_tokens": None} for row in SECONDS.read_text("utf-8").splitlines()]
    rows[line] |= changes
    path = tmp_path / "trace"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with pytest.raises(UsageError, match=shown) as fault:
        list(Trace(path=path))
    assert "copy" not in fault.value.hint


def test_hashes_of_no_size_of_a_block_are_refused(tmp_path: Path) -> None:
    rows = [json.loads(row) for row in SECONDS.read_text("utf-8").splitlines()]
    text = "\n".join(json.dumps(row | {"hash_ids": row["hash_ids"][:-2]}) for row in rows)
    with pytest.raises(UsageError, match="63 hash ids for a prompt of 1033 tokens, and no size of a block fits most"):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ['{"prompt": "a", "output_tokens": 9}', '{"text_input": "a", "session_id": "b"}'])
def test_prompts_without_times_are_no_trace(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="does not say when it came") as fault:
        read(tmp_path, text)
    assert "--rate" in fault.value.hint


def test_dates_have_zones_or_none(tmp_path: Path) -> None:
    """The hour that a clock skips in spring is an hour of the trace; Azure's of 2024 say that they are in UTC."""
    rows = "2024-03-31 01:30:00.0000000,9,9\n2024-03-31 03:30:00.0000000,9,9\n"
    zoned = "2024-05-10 00:00:00.009930+00:00,9,9\n2024-05-10T00:00:01Z,9,9\n"
    assert [at_s for at_s, _, _ in read(tmp_path, AZURE.splitlines()[0] + "\n" + rows)] == [0.0, 7200.0]
    assert [at_s for at_s, _, _ in read(tmp_path, AZURE.splitlines()[0] + "\n" + zoned)] == [0.0, 0.99007]


def test_a_trace_is_not_read_before_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(MOONCAKE + "damaged", encoding="utf-8")
    assert len(list(itertools.islice(Trace(path=path), 2))) == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "fields 'a, b' does not say when it came, its prompt's length, its answer's"),
        (MOONCAKE[:-30], "line 2: ends in the middle of its JSON"),
        (MOONCAKE.replace("27500", "26000"), "line 2: comes 1 s before the line above: must be in order"),
        (MOONCAKE.replace("1200", "-5"), "line 1: prompt of -5 tokens: must be 1 to"),
        (MOONCAKE.replace("27500", "1e300"), "line 2: comes 1e.* must be within ten years"),
        (MOONCAKE.replace("27500", "NaN"), "line 2: comes nan"),
        (AZURE.replace("374", "four"), "line 2: cannot be read"),
        (AZURE.replace("374,44", "374"), "line 2: cannot be read"),
        (BURSTGPT.replace("18", "1e30"), "line 2: Total tokens is 490: must be 472 . 1000000"),
        (AZURE.replace(",44", ",1e30"), "line 2: answer of"),
        (AZURE.splitlines()[0], "holds no request"),
        ("{" * 5_000_000, "is longer than"),
        (MOONCAKE + AZURE, "line 3: no JSON"),
        (AZURE + BURSTGPT, "line 4: cannot be read"),
        (MOONCAKE + '{"metadata": {}, "metrics": {}}', "line 3: cannot be read: no field 'input_length'"),
        (MOONCAKE.replace("[0, 1, 7]", "[[0], 1, 7]"), "whole numbers"),
        (MOONCAKE.replace("[0, 1, 7]", '"017"'), "whole numbers"),
        (MOONCAKE.replace("5,", "true,"), "output_length is True: must be a whole number"),
        (MOONCAKE.replace("27000", "-1e400"), "line 1: comes"),
        (MOONCAKE.replace("1200", "100000001"), "line 1: prompt of 100000001 tokens"),
        (MOONCAKE.replace("27500", "1" * 400), "line 2: cannot be read: int too large"),
        (BURSTGPT.replace("472", "1e999"), "line 2: cannot be read"),
        (AZURE.replace("2023-11-16 18:17:03", "2023-13-16 18:17:03"), "line 2: cannot be read"),
        ("\x00" * 1000, "does not say when it came"),
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
