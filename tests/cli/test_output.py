"""What `predict` prints: the table, the JSON of the documented form, CSV, and the same in files."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import SMALL, Ran, process, run
from tests.support.configs import MISTRAL_7B

FOUR = ["standard", "parallel", "ladder", "upper-bound"]
TOP = [
    *("schema_version", "batching", "scenario", "variants", "best_standard", "collectives", "provenance"),
    *("validated", "warnings"),
]
SCENARIO = {
    "model": "llama-3.1-405b",
    "cluster": "h100-sxm",
    "nodes": 2,
    "gpus_per_node": 8,
    "tp": 16,
    "pp": 1,
    "ep": 1,
    "attention_dp": 1,
    "dp": 1,
    "sp": False,
    "batch": 1,
    "prompt": 1024,
    "gen": 512,
    "concurrency": None,
    "imbalance": "power-law-1.01",
    "dtype": "bf16",
    "kv_dtype": "bf16",
    "stack": "gpt-fast",
    "technique": "none",
    "p2p": True,
    "batching": "static",
}
FIGURES = [
    *("ttft_s", "tpot_s", "request_s", "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"),
    *("speedup", "speedup_low", "speedup_high", "ttft_speedup", "tpot_speedup"),
    *("comm_s", "exposed_comm_s", "memory_bytes_per_gpu", "fits"),
]


def read_json(ran: Ran) -> Any:
    """The one object on stdout."""
    assert ran.code == 0, ran.err

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(ran.out, parse_constant=refuse)


@pytest.fixture(scope="module")
def default() -> Any:
    return read_json(run("predict", "--model", "405b", "--nodes", "2", "--json"))


def test_json_has_exactly_the_documented_keys(default: Any) -> None:
    assert list(default) == TOP
    assert default["schema_version"] == 2
    assert default["scenario"] == SCENARIO
    assert list(default["scenario"]) == list(SCENARIO)
    assert list(default["variants"]) == FOUR
    for figures in default["variants"].values():
        assert list(figures) == FIGURES
    assert list(default["provenance"]) == ["profile", "measured_fraction"]
    checked = {
        "stack": True,
        # standard ran over two nodes, ladder did not
        "wiring": False,
        "technique": True,
        "gpu": True,
        "links": True,
        "layers": True,
        "model_family": True,
        "precision": True,
        "experts": True,
        "plan": True,
    }
    checked |= {"model_size": True, "tp": True, "batch": True, "prompt": True, "gen": True}
    assert default["validated"] == checked
    assert list(default["validated"]) == list(checked)


def test_compare_says_for_each_what_was_checked() -> None:
    answer = read_json(run("compare", "gpt-fast", "vllm", "--model", "8b", "--variant", "ladder", "--json"))
    assert {name: checked["stack"] for name, checked in answer["validated"].items()} == {
        "gpt-fast": True,
        "vllm": False,
    }
    alone = read_json(run("predict", "--model", "8b", "--stack", "vllm", "--variant", "ladder", "--json"))
    ends = ("tokens_per_s_low", "tokens_per_s_high", "speedup_low", "speedup_high")
    assert [answer["rows"][1][end] for end in ends] == [alone["variants"]["ladder"][end] for end in ends]


def test_json_figures_agree_with_each_other(default: Any) -> None:
    base = default["variants"]["standard"]
    for figures in default["variants"].values():
        assert figures["request_s"] == pytest.approx(figures["ttft_s"] + 511 * figures["tpot_s"])
        assert figures["tokens_per_s"] == pytest.approx(512 / figures["request_s"])
        assert figures["speedup"] == pytest.approx(base["request_s"] / figures["request_s"])
        assert figures["ttft_speedup"] == pytest.approx(base["ttft_s"] / figures["ttft_s"])
        assert figures["tpot_speedup"] == pytest.approx(base["tpot_s"] / figures["tpot_s"])
        assert figures["tokens_per_s_low"] <= figures["tokens_per_s"] <= figures["tokens_per_s_high"]
        assert figures["speedup_low"] <= figures["speedup"] <= figures["speedup_high"]
        assert 0 <= figures["exposed_comm_s"] <= figures["comm_s"]
        # bytes of an 80 GB GPU, seconds of a request of half a minute at most
        assert 50e9 < figures["memory_bytes_per_gpu"] < 80e9
        assert figures["fits"] is True
        assert 1 < figures["request_s"] < 60
    assert base["speedup"] == base["speedup_low"] == base["speedup_high"] == 1
    assert 0 < default["provenance"]["measured_fraction"] < 1
    assert default["provenance"]["profile"] == "h100-sxm-gpt-fast"


def test_ladder_lies_between_standard_and_the_upper_bound(default: Any) -> None:
    speedup = {name: figures["speedup"] for name, figures in default["variants"].items()}
    assert 1 < speedup["ladder"] < speedup["upper-bound"]


def test_json_is_alone_on_stdout_and_quiet_on_stderr() -> None:
    ran = run(*SMALL, "--json")
    assert ran.out.startswith("{\n")
    assert ran.out.endswith("}\n")
    assert ran.err == ""


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_tables_of_ops_are_text(form: str) -> None:
    ran = run(*SMALL, form, "--explain")
    assert ran.code == 2
    assert "--explain adds tables of text" in ran.err


def test_variants_keep_their_parameters_and_order() -> None:
    asked = ("--variant", "desync:4,Ladder", "--variant", "hybrid-ladder:016", "--variant", "ladder")
    found = read_json(run("predict", "--model", "8b", *asked, "--json"))
    assert list(found["variants"]) == ["desync:4", "ladder", "hybrid-ladder:16"]


def test_one_token_has_no_time_per_further_token() -> None:
    figures = read_json(run(*SMALL, "--gen", "1", "--json"))["variants"]["ladder"]
    assert figures["tpot_s"] is None
    assert figures["tpot_speedup"] is None
    assert figures["request_s"] == figures["ttft_s"]
    row = next(line for line in run(*SMALL, "--gen", "1").out.splitlines() if line.startswith("ladder"))
    assert row.split()[3] == "-"
    (row_csv,) = csv.DictReader(io.StringIO(run(*SMALL, "--gen", "1", "--csv").out))
    assert row_csv["tpot_s"] == ""


def test_ignoring_memory_is_said() -> None:
    command = ("predict", "--model", "70b", "--tp", "1", "--set", "ignore_memory=true")
    found = read_json(run(*command, "--json"))
    assert {figures["fits"] for figures in found["variants"].values()} == {False}
    assert found["variants"]["ladder"]["memory_bytes_per_gpu"] > 85.5e9
    # Regression: the table did not say so
    assert "caution   does not fit: needs 144 GB of 85.5 GB per GPU.\n" in run(*command).out


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (("--model", "405b", "--nodes", "2"), "8 KV heads on 16 ranks: each KV head is held by 2 ranks"),
        (("--model", "8b", "--dtype", "fp16"), "fp16 uses the bf16 tables: the same bytes and tensor-core rate"),
        (("--model", "8b", "--profile", "none"), "no measured profile: every time is a datasheet roofline"),
        (("--model", "8b", "--nodes", "2", "--tp", "8"), "tp 8 uses 1 of 2 nodes"),
        (("--model", "8b", "--prompt", "200000"), "context of 200512 tokens: 'llama-3.1-8b' was made for 131072"),
    ],
)
def test_warnings_are_in_the_json_and_end_the_table(arguments: tuple[str, ...], warning: str) -> None:
    command = ("predict", *arguments, "--variant", "ladder", "--set", "ignore_memory=true")
    assert warning in read_json(run(*command, "--json"))["warnings"]
    table = run(*command, "--explain")
    assert f"\nwarning: {warning}\n" in table.out
    assert table.err == ""
    assert f"caution   {warning}.\n" in run(*command).out
    # rows have no place for it
    assert f"warning: {warning}\n" in run(*command, "--csv").err


@pytest.mark.parametrize(
    "command",
    [
        ("sweep", "--batch", "1,16"),
        ("breakeven", "inter.allreduce_floor"),
        ("sensitivity",),
        ("advise",),
        ("compare", "gpt-fast", "vllm"),
        ("versus", "--variant", "ladder"),
    ],
)
def test_every_answer_says_what_was_compared_and_warns(command: tuple[str, ...]) -> None:
    scenario = (*command, "--model", "405b", "--nodes", "2", "--tp", "16")
    if command[0] == "sweep":
        scenario = tuple(text for text in scenario if text not in ("--nodes", "2"))
    printed = run(*scenario, "--explain").out
    lines = printed[printed.index("Predictions were compared with runs of gpt-fast on H100") :].splitlines()
    # of another engine nothing was measured
    lines = [line for line in lines if not line.startswith("Nothing like this was measured: no static batch of ")]
    assert lines[1].startswith("Not in these runs, so intervals are wider: ")
    assert "wiring (" in lines[1]
    assert lines[2].startswith("Stack gpt-fast: ")
    warnings = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    assert "8 KV heads on 16 ranks: each KV head is held by 2 ranks" in warnings
    if command[0] == "sweep":
        return
    answer = read_json(run(*scenario, "--json"))
    assert answer["warnings"] == warnings
    checked = answer["validated"]
    parts = checked if "links" in checked else next(iter(checked.values()))
    assert (parts["wiring"], parts["gpu"]) == (False, True)


def test_csv_has_a_row_per_variant() -> None:
    ran = run("predict", "--model", "70b", "--csv")
    rows = list(csv.reader(io.StringIO(ran.out)))
    assert rows[0] == [*SCENARIO, "variant", *FIGURES]
    assert [row[rows[0].index("variant")] for row in rows[1:]] == FOUR
    found = read_json(run("predict", "--model", "70b", "--json"))
    for row in csv.DictReader(io.StringIO(ran.out)):
        assert float(row["request_s"]) == found["variants"][row["variant"]]["request_s"]
        assert row["fits"] == "True"


def test_redirected_text_is_what_would_be_printed() -> None:
    """A file holds the whole answer, however wide."""
    assert process(*SMALL, shell="| cat").out == run(*SMALL).out


def test_the_default_table() -> None:
    ran = run("predict", "--model", "405b", "--nodes", "2")
    assert ran.code == 0
    sentence, asked, blank, columns, *rows = ran.out.splitlines()
    assert re.fullmatch(
        r"Ladder is 1\.\d\dx as fast as standard here \(90 %: [\d.]+-[\d.]+\); it needs retraining\.",
        sentence,
    )
    assert asked == (
        "llama-3.1-405b bf16, TP 16 on 2 x 8 H100 SXM5 80GB, gpt-fast (--stack); static batch 1, 1024 + 512"
    )
    assert not blank
    assert re.split(r"\s{2,}", columns) == [
        *("variant", "speedup (90 %)", "TPOT [ms] (90 %)", "TTFT [ms]", "tok/s (90 %)", "exposed"),
    ]
    found = {}
    for name, row in zip(("standard", "parallel", "ladder", "(no communication)"), rows[:4], strict=True):
        parts = re.split(r"\s{2,}", row)
        assert parts[0] == name
        assert len(parts) == 6
        found[name] = float(parts[1].split()[0])
        assert re.search(r"\d %$", row)
    assert found["standard"] == 1
    assert 1 < found["ladder"] < found["(no communication)"]
    assert [line.split()[0] for line in rows[4:] if not line.startswith(" ")] == [
        "why",
        "evidence",
        "instead",
        "caution",
    ]
    more = run("predict", "--model", "405b", "--nodes", "2", "--explain").out
    assert more.startswith(ran.out)
    assert re.search(
        r"^\d+% of standard's time is measured \(profile h100-sxm-gpt-fast\)\. Sources of standard's time:$", more, re.M
    )
    assert "…" not in more
    shares = [float(found) for found in re.findall(r"^  [a-z]+ +([\d.]+)%  ", more, re.M)]
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_large_rates_have_no_exponent() -> None:
    """Regression: 10060 tok/s was printed as 1.006e+04."""
    assert "e+0" not in run(*SMALL, "--batch", "20000", "--set", "ignore_memory=true").out


OPS = ["embedding", "attn.qkv", "attn.rope", "attn.attention", "attn.o", "attn.all_reduce"]
OPS += ["mlp.up", "mlp.activation", "mlp.down", "mlp.all_reduce", "attn.norm", "mlp.norm", "final.norm"]


def test_explain_shows_every_op_its_source_and_the_memory() -> None:
    ran = run("predict", "--model", "405b", "--nodes", "2", "--variant", "standard,ladder", "--explain")
    for title in ("standard: prefill", "standard: one decode step", "ladder: prefill", "ladder: one decode step"):
        assert title in ran.out
    tables = re.split(r"^\w+: (?:prefill|one decode step), .*$", ran.out, flags=re.M)[1:]
    assert len(tables) == 4
    for body in tables:
        names = [line.split()[0] for line in body.splitlines() if line]
        assert {*OPS, "lm_head", "sample"} <= set(names)
        assert {"roofline", "measured", "fitted"} <= set(body.split())
        assert "critical" in body
    # ladder cannot add in the norm's kernel on this stack
    assert "attn.add" in tables[2]
    assert ran.out.count("memory per GPU: 61.0 GB of 85.5 GB (weights 59.1 GB, KV cache") == 2


def test_explain_shows_sharding_of_other_stacks() -> None:
    ran = run(*SMALL, "--stack", "vllm", "--explain")
    assert "all_gather" in ran.out
    assert "flash, 4/1 heads" in ran.out


def test_config_from_outside_the_catalog(tmp_path: Path) -> None:
    folder = tmp_path / "Mistral-7B-v0.3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MISTRAL_7B))
    for path in (folder, folder / "config.json"):
        found = read_json(run("predict", "--model", str(path), "--tp", "4", "--json"))
        assert found["scenario"]["model"] == "Mistral-7B-v0.3"
        # 7.25 billion weights over four ranks, the embedding and the head on every one
        assert 4e9 < found["variants"]["standard"]["memory_bytes_per_gpu"] < 8e9
        assert 1 < found["variants"]["ladder"]["speedup"] < found["variants"]["upper-bound"]["speedup"]


def test_ladder_config_selects_its_variant(tmp_path: Path) -> None:
    file = tmp_path / "half.json"
    file.write_text(json.dumps({**MISTRAL_7B, "model_type": "llamaLadder", "ladder_layers": 16}))
    found = read_json(run("predict", "--model", str(file), "--json"))
    assert list(found["variants"]) == ["standard", "parallel", "hybrid-ladder:16", "upper-bound"]


@pytest.mark.parametrize("name", ["[red]x[/].json", "a:smile:b.json", "[/].json"])
def test_names_are_no_markup(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(json.dumps(MISTRAL_7B))
    asked = run("predict", "--model", str(file), "--variant", "ladder").out.splitlines()[1]
    assert asked.startswith(f"{file.stem} bf16, TP 8")


def test_settings_change_the_answer() -> None:
    command = ("predict", "--model", "405b", "--nodes", "2", "--variant", "ladder", "--json")
    prefills_s = [
        read_json(run(*command, *setting))["variants"]["ladder"]["ttft_s"]
        for setting in ((), ("--set", "inter.bandwidth=100Gb/s"), ("--set", "inter.bandwidth=12.5GB/s"))
    ]
    assert prefills_s[0] < prefills_s[1] == prefills_s[2]


def test_no_escapes_off_a_terminal() -> None:
    for command in (SMALL, ("list", "models"), ("list", "h100-sxm"), ("predict", "--help"), ("--help",)):
        ran = run(*command)
        assert ran.code == 0
        assert "\x1b" not in ran.out + ran.err
    ran = process(*SMALL, NO_COLOR="1")
    assert ran.code == 0
    assert "\x1b" not in ran.out + ran.err


# figures of a prediction with jitter only
UNEVEN = ["ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s", "waiting_s"]


@pytest.mark.slow
def test_jitter_adds_a_table() -> None:
    plain, ran = run(*SMALL, "--explain"), run(*SMALL, "--set", "jitter=0.05", "--explain")
    assert ran.code == 0
    assert "uneven ranks" not in plain.out
    lines = ran.out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("uneven ranks")]
    columns = re.split(r"\s{2,}", lines[at])
    assert columns == ["uneven ranks", "TTFT p50", "p95", "TPOT p50", "p95", "waiting for others, hidden or not"]
    row = re.split(r"\s{2,}", lines[at + 1])
    assert row[0] == "ladder"
    assert len(row) == len(columns)
    assert re.fullmatch(r"[\d.]+ \w*s", row[-1])
    # what it adds to the critical path is a share of its own
    assert re.search(r"^critical path .*uneven ranks", ran.out, re.M)
    single = run(*SMALL, "--set", "jitter=0.05", "--gen", "1", "--explain").out
    assert re.search(r"^uneven ranks .*\nladder +[\d.]+ \w+ +[\d.]+ \w+ +- +- ", single, re.M)


@pytest.mark.slow
def test_jitter_adds_figures_to_json_and_csv() -> None:
    command = (*SMALL, "--set", "jitter=0.05", "--set", "seed=7")
    figures = read_json(run(*command, "--json"))["variants"]["ladder"]
    assert list(figures) == [*FIGURES, *UNEVEN]
    assert 0 < figures["ttft_p50_s"] <= figures["ttft_p95_s"]
    assert 0 < figures["tpot_p50_s"] <= figures["tpot_p95_s"]
    assert 0 < figures["waiting_s"] < figures["request_s"]
    (row,) = csv.DictReader(io.StringIO(run(*command, "--csv").out))
    assert list(row) == [*SCENARIO, "variant", *FIGURES, *UNEVEN]
    assert float(row["waiting_s"]) == figures["waiting_s"]
    assert run(*command, "--json").out == run(*command, "--json").out
    assert read_json(run(*SMALL, "--set", "jitter=0.05", "--json"))["variants"]["ladder"] != figures
    # none asked for: none of them
    assert run(*SMALL, "--set", "jitter=0", "--set", "seed=7", "--json").out == run(*SMALL, "--json").out


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--set", "jitter=0.05"), ("--stack", "vllm", "--batch", "16")])
def test_engines_print_the_same_figures(flags: tuple[str, ...]) -> None:
    command = ("predict", "--model", "8b", *flags, "--json")
    fast, des = (read_json(run(*command, "--set", f"engine={engine}")) for engine in ("fast", "des"))
    assert list(fast["variants"]) == list(des["variants"]) == FOUR
    for name in FOUR:
        assert fast["variants"][name] == pytest.approx(des["variants"][name], rel=1e-9)
    assert fast["scenario"] == des["scenario"]


def test_settings_say_what_jitter_takes() -> None:
    text = re.sub(r"\s+", " ", run("list", "settings").out)
    assert "Random spread of kernel times, e.g. 0.05, or 'measured'; every rank is simulated." in text
    assert "fast: vectorised; des: event by event on simpy." in text
    assert "Seed of the random numbers." in text


THROUGHPUT = {
    "predict": (*SMALL,),
    "sweep": ("sweep", "--model", "8b", "--tp", "2", "--variant", "ladder", "--price", "2"),
    "advise": ("advise", "--model", "8b", "--batches", "1:4", "--price", "2"),
    "compare": ("compare", "vllm", "trtllm", "--model", "8b", "--variant", "ladder"),
    "validate": ("validate",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", THROUGHPUT)
def test_throughput_is_called_that_of_a_static_batch(name: str, tmp_path: Path) -> None:
    """Nobody may take it for the throughput of a server."""
    command = THROUGHPUT[name]
    assert json.loads(run(*command, "--json").out)["batching"] == "static"
    page = tmp_path / "page.html"
    # more than one point for a line
    varied = ("--batch", "1,2") if name == "sweep" else ()
    shown = run(*command, *varied, "--set", f"plot={page}")
    assert "static batch" in shown.out + shown.err
    assert "static batch" in page.read_text("utf-8")
    assert "static batch" in " ".join(run(name, "--help").out.split())
