"""Measuring: what a benchmark reports, what a recording shows, and what the command line makes of it."""

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ladder_sim.cli import run as cli
from ladder_sim.errors import LadderSimError, MissingDependencyError
from runtime.bench import BenchConfig, bench
from runtime.comm.emulate import EmulatedLink
from runtime.comm.rendezvous import CommConfig
from runtime.comm.table import LatencyTable
from runtime.config import EngineConfig
from runtime.errors import InfeasibleError, InputError

pytestmark = pytest.mark.torch

SMALL = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}
VARIANTS = ("standard", "parallel", "ladder", "hybrid-ladder:2", "desync:2", "upper-bound")
BLOCKS, STEPS = 8, 4
REQUEST = {"prompt": 16, "gen": STEPS, "batch": 1}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL))
    return file


def link(folder: Path, seconds: float) -> CommConfig:
    """A link on which every message takes so long."""
    file = folder / "link.csv"
    file.write_text(f"bytes,seconds\n1,{seconds}\n1e9,{seconds * 1.000001}\n")
    return CommConfig(backend="emulate", table=file)


def recorded(file: Path) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Entries of each pass, by variant and phase."""
    header, *entries = map(json.loads, file.read_text().splitlines())
    assert header["schema_version"] == 1
    for (variant, phase, _), group in itertools.groupby(entries, lambda e: (e["variant"], e["phase"], e["step"])):
        yield (variant, phase), list(group)


def test_every_variant_on_an_emulated_link(model: Path, tmp_path: Path) -> None:
    config = BenchConfig(model=model, variants=VARIANTS, tp=4, warmups=1, repeats=2, **REQUEST)
    found: Any = json.loads(json.dumps(bench(config, EngineConfig(), link(tmp_path, 1e-3))))
    assert tuple(found["variants"]) == VARIANTS
    assert found["run"]["backend"] == "emulate"
    assert found["environment"]["torch_threads"] == 1
    reductions = {"standard": 8, "parallel": 4, "ladder": 8, "hybrid-ladder:2": 8, "desync:2": 4, "upper-bound": 0.5}
    for name, measured in found["variants"].items():
        assert len(measured["repeats"]) == 2
        assert measured["request_s"] == pytest.approx(measured["ttft_s"] + measured["tpot_s"] * (STEPS - 1), rel=0.2)
        # the upper bound broadcasts its token, for half an all-reduce
        assert measured["comm_s"] == pytest.approx(reductions[name] * STEPS * 1e-3, rel=1e-3)
        assert 0 <= measured["exposed_comm_s"] <= measured["request_s"]


def test_ladder_gains_where_communication_takes_two_fifths(model: Path, tmp_path: Path) -> None:
    """The product's claim, measured: with 40 % of standard's time on the link, ladder is 1.2 times faster and more."""
    shared = {"model": model, "tp": 2, "warmups": 1, "repeats": 5, "prompt": 16, "gen": 16}
    alone: Any = bench(BenchConfig(variants=("upper-bound",), **shared), EngineConfig(), CommConfig(backend="none"))
    seconds = alone["variants"]["upper-bound"]["request_s"] * (0.4 / 0.6) / (BLOCKS * 16)
    config = BenchConfig(variants=("standard", "ladder"), **shared)
    found: Any = bench(config, EngineConfig(), link(tmp_path, seconds))
    standard, ladder = found["variants"]["standard"], found["variants"]["ladder"]
    assert 0.25 < standard["comm_s"] / standard["request_s"] < 0.5
    assert ladder["speedup"] > 1.2
    assert ladder["exposed_comm_s"] < 0.5 * standard["exposed_comm_s"]


def test_ladder_overlaps_and_standard_does_not(model: Path, tmp_path: Path) -> None:
    config = BenchConfig(model=model, variants=("standard", "ladder"), tp=4, warmups=0, repeats=1, **REQUEST)
    bench(config, EngineConfig(), link(tmp_path, 4e-3), record=tmp_path / "trace")
    passes = 0
    for (variant, _), entries in recorded(tmp_path / "trace" / "rank0.jsonl"):
        passes += 1
        reductions = [(at, entry) for at, entry in enumerate(entries) if entry["op"] == "all_reduce"]
        assert len(reductions) == BLOCKS
        for number, (at, reduction) in enumerate(reductions, start=1):
            compute = next(entry for entry in entries[at:] if entry["op"] in ("gemm", "lm_head"))
            overlaps = compute["start_s"] < reduction["end_s"]
            # nothing is left to overlap the last two: ladder waits for both before the LM head
            assert overlaps == (variant == "ladder" and number < BLOCKS)
    assert passes == 2 * STEPS


def test_two_gloo_ranks_by_the_command_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ["--model", str(model), "--bench", "--tp", "2", "--variant", ",".join(VARIANTS), "--gen", str(STEPS)]
    arguments += ["--prompt", "16", "--warmups", "1", "--repeats", "2", "--backend", "gloo", "--save", str(file)]
    done = _cli(*arguments, "--set", "model.layers=2", "--record", str(tmp_path / "trace"))
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert tuple(found["variants"]) == VARIANTS
    assert found["shape"]["layers"] == 2
    assert found["run"]["backend"] == "gloo"
    assert found["run"]["gloo_threads"] == 1
    assert found["engine"]["attention"] == "math"
    assert all(one["tokens_per_s"] > 0 for one in found["variants"].values())
    ranks = [dict(recorded(tmp_path / "trace" / f"rank{rank}.jsonl")) for rank in (0, 1)]
    ops = [{key: [entry["op"] for entry in entries] for key, entries in rank.items()} for rank in ranks]
    assert ops[0] == ops[1]
    assert all(e["end_s"] is not None for entries in ranks[0].values() for e in entries if e["op"] == "all_reduce")


def _cli(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(cli.run)
    return CliRunner().invoke(app, arguments)


def test_the_command_line_shows_a_table(model: Path, tmp_path: Path) -> None:
    arguments = ["--model", str(model), "--bench", "--tp", "2", "--emulate", str(link(tmp_path, 1e-3).table)]
    done = _cli(*arguments, "--prompt", "8", "--gen", "2", "--warmups", "0", "--repeats", "1", "--stack", "vllm")
    assert done.exit_code == 0, done.output
    title, _, _, header, *rows = done.output.splitlines()
    assert title.startswith("small, TP 2, backend emulate, ")
    assert header.split() == ["variant", "TTFT", "TPOT", "tok/s", "speedup", "communication", "hidden"]
    assert [row.split()[0] for row in rows] == ["standard", "parallel", "ladder", "upper-bound"]


def test_a_catalog_model_travels_as_its_config() -> None:
    spec, stack, config = cli._resolve("8b", "gpt-fast", {"model.layers": "4", "stack.attention": "flash"})
    assert (spec.layers, stack.attention) == (4, "flash")
    assert (config["num_hidden_layers"], config["hidden_size"]) == (4, 4096)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--model", "8b"), "--bench"),
        (("--model", "9x", "--bench"), "unknown model"),
        (("--model", "8b", "--bench", "--set", "gpu.sms=3"), "model or stack"),
        (("--model", "8b", "--bench", "--set", "model.max_positions=3"), "unknown setting"),
        (("--model", "8b", "--bench", "--save", "x.csv"), "no CSV"),
    ],
)
def test_what_the_command_line_refuses(arguments: tuple[str, ...], part: str) -> None:
    done = _cli(*arguments)
    assert isinstance(done.exception, LadderSimError)
    assert done.exception.exit_code == 2
    assert part in str(done.exception)


def test_without_torch_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    done = _cli("--model", "8b", "--bench")
    assert isinstance(done.exception, MissingDependencyError)
    assert "pip install 'ladder-sim[runtime]'" in str(done.exception)


def test_a_link_carries_one_message_after_the_other() -> None:
    import torch

    emulated = EmulatedLink(2, LatencyTable([(1, 0.01), (1e9, 0.01 * 1.000001)]))
    start_s = time.perf_counter()
    first, second = emulated.all_reduce(torch.zeros(1)), emulated.all_reduce(torch.zeros(1))
    first.wait()
    assert time.perf_counter() - start_s >= 0.01
    second.wait()
    assert time.perf_counter() - start_s >= 0.02


def test_latencies_between_and_beyond_a_tables_points(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps([{"bytes": 1e4, "seconds": 1e-5}, {"bytes": 1e6, "seconds": 1e-3}]))
    table = LatencyTable.from_file(file)
    assert [table.seconds(size) for size in (1, 1e4, 1e5, 1e6, 3e6)] == pytest.approx([1e-5, 1e-5, 1e-4, 1e-3, 3e-3])


@pytest.mark.parametrize(
    "text", ["", "bytes,seconds\n", "bytes,seconds\n1,-1\n", "a,b\n1,2\n", "bytes,seconds\n1,1\n1,2\n"]
)
def test_a_table_that_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(InputError):
        LatencyTable.from_file(file)


def test_a_model_that_does_not_fit_says_what_would(model: Path) -> None:
    config = BenchConfig(model=model, variants=("ladder",), batch=10**9, prompt=16, gen=4)
    with pytest.raises(InfeasibleError, match=r"a batch of \d+ fits"):
        bench(config, EngineConfig(), CommConfig())
