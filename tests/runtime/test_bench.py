"""Measuring: what a benchmark reports, and how the command line shows it."""

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ladder_sim.cli.run import _resolve
from ladder_sim.errors import InfeasibleError, UsageError, install_command
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.bench import _Sample, bench
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.comm.base import Communicator, Handle
from ladder_sim_runtime.comm.emulate import EmulatedLink, LatencyTable
from ladder_sim_runtime.commands import argument_parser
from ladder_sim_runtime.config import BenchConfig, CommConfig, EngineConfig, ModelConfig
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.commands import run
from tests.support.schemas import check
from tests.support.terminal import progress_of

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
# all-reduces of a step; the upper bound broadcasts its token, for half of one
REDUCTIONS: dict[str, float] = {"standard": 8, "parallel": 4, "ladder": 8, "hybrid-ladder:2": 8, "desync:2": 4}
REDUCTIONS |= {"upper-bound": 0.5, "ladder:2": 8, "delayed:1": 8, "track:2": 2, "drop:2": 6, "farskip": 8}
# one averages the other channels
REDUCTIONS |= {"partial:50": 9}
VARIANTS = tuple(REDUCTIONS)
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


def test_every_variant_on_an_emulated_link(model: Path, tmp_path: Path) -> None:
    config = BenchConfig(model=model, variants=VARIANTS, tp=4, warmups=1, repeats=2, **REQUEST)
    result: Any = json.loads(json.dumps(bench(config, EngineConfig(), link(tmp_path, 1e-3))))
    check("bench", result)
    assert tuple(result["variants"]) == VARIANTS
    assert result["run"]["backend"] == "emulate"
    assert result["environment"]["torch_threads"] == 1
    for name, measured in result["variants"].items():
        assert len(measured["repeats"]) == 2
        assert measured["request_s"] == pytest.approx(measured["ttft_s"] + measured["tpot_s"] * (STEPS - 1))
        assert measured["comm_s"] == pytest.approx(REDUCTIONS[name] * STEPS * 1e-3, rel=1e-3)
        assert 0 <= measured["exposed_comm_s"] <= measured["request_s"]


def test_rounds_go_on_until_speedups_are_known(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth request of ladder is slow: only with more rounds the median is known from both sides."""

    def rounds(within: float | None, budget_s: float) -> tuple[int, Any]:
        ladder = itertools.cycle([1.0, 1.0, 1.0, 2.0])
        monkeypatch.setattr(
            "ladder_sim_runtime.bench._request",
            lambda _, wiring, watched: _Sample(
                0.0, next(ladder) if wiring.name == "ladder" else 1.5, math.nan, math.nan
            ),
        )
        names = ("standard", "ladder")
        how = {"warmups": 0, "repeats": 2, "within": within, "budget_s": budget_s, **REQUEST}
        result: Any = bench(BenchConfig(model=model, variants=names, **how), EngineConfig(), CommConfig())
        return result["run"]["repeats"], result["variants"]["ladder"]["speedup_95"]

    assert rounds(None, 100.0) == (2, None)
    assert rounds(0.01, 100.0) == (15, (1.5, 1.5))
    # a round takes 2.5 s or 3.5 s
    assert rounds(0.01, 8.0)[0] == 5


def test_requests_are_counted_on_a_terminal(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = progress_of(monkeypatch)
    names = ("standard", "ladder", "Ladder:1")
    config = BenchConfig(model=model, variants=names, tp=4, warmups=1, repeats=2, **REQUEST)
    bench(config, EngineConfig(), link(tmp_path, 1e-6))
    assert re.findall(r"(\d+) of 6 requests", screen.getvalue()) == [*"123456"]


@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_ladder_computes_under_its_messages_and_standard_does_not(model: Path, variant: str) -> None:
    """The product's claim, by the order of events: GEMMs between the issue of each message and the wait for it."""
    order: list[tuple[str, int]] = []

    class Link(Communicator):
        def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
            order.append(("issue", sum(event == "issue" for event, _ in order)))
            return Message(order[-1][1])

    class Message:
        def __init__(self, number: int) -> None:
            self._number = number

        def wait(self) -> None:
            order.append(("wait", self._number))

        def observe(self, sink: Callable[[float], None]) -> None:
            """Not used."""

    def watch(kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        order.append((kind, 0))
        return run(*args)

    shape = ModelConfig.from_file(model)
    decoder = Decoder(shape, EngineConfig(), Link(2), positions=4)
    fill(decoder, random_weights(seed=0))
    with kernels.observed(watch):
        decoder(torch.zeros(1, 4, dtype=torch.long), lay_out(variant, shape.layers))
    for number in range(BLOCKS):
        between = order[order.index(("issue", number)) : order.index(("wait", number))]
        # nothing is left to compute under the last message
        assert (("gemm", 0) in between) == (variant == "ladder" and number < BLOCKS - 1)


def test_two_gloo_ranks_by_the_command_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    arguments = ["--model", str(model), "--bench", "--tp", "2", "--variant", ",".join(VARIANTS), "--gen", str(STEPS)]
    arguments += ["--prompt", "16", "--warmups", "1", "--repeats", "2", "--backend", "gloo", "--save", str(file)]
    ran = run("run", *arguments, "--set", "model.layers=2", "--set", "stack.cuda_graphs=all")
    assert ran.code == 0, ran.err
    result = json.loads(file.read_text())
    # as its stack, as far as this machine can
    assert {result["run"][how] for how in ("cuda_graphs", "prefill_cuda_graphs", "compile")} == {"auto"}
    assert result["execution"]["missing"] == [
        "CUDA graphs need a GPU",
        "blocks are compiled by default on GPUs alone",
    ]
    assert tuple(result["variants"]) == VARIANTS
    assert result["shape"]["layers"] == 2
    assert result["run"]["backend"] == "gloo"
    assert result["run"]["gloo_threads"] == 1
    assert result["engine"]["attention"] == "math"
    assert all(measured["tokens_per_s"] > 0 for measured in result["variants"].values())


def test_the_command_line_shows_a_table(model: Path, tmp_path: Path) -> None:
    arguments = ["--model", str(model), "--bench", "--tp", "2", "--emulate", str(link(tmp_path, 1e-3).table)]
    workload = ("--prompt", "8", "--gen", "2", "--warmups", "0", "--repeats", "6")
    ran = run("run", *arguments, *workload, "--stack", "vllm")
    assert ran.code == 0, ran.err
    title, _, launches, _, header, *rows = ran.out.splitlines()
    assert launches == "all eager: CUDA graphs need a GPU"
    assert title.startswith("small, TP 2, backend emulate, ")
    assert header.split() == ["variant", "TTFT", "TPOT", "tok/s", "speedup", "(95%)", "communication", "hidden"]
    assert all(re.search(r" \d\.\d\d \(\d\.\d\d-\d\.\d\d\) ", row) for row in rows[1:])
    assert [row.split()[0] for row in rows] == ["standard", "parallel", "ladder", "upper-bound"]


def test_completion_has_gloos_threads_and_measurements_have_nccls_order() -> None:
    """Regression: 63 % of ladder's collectives of a step waited for the one before, in completions, too."""
    asked = ["--model", "DIR", "--variant", "ladder"]
    assert argument_parser().parse_args(["complete", *asked, "--prompt", "a"]).gloo_threads == 2
    assert argument_parser().parse_args(["bench", *asked]).gloo_threads == 1


def test_help_shows_the_options_of_the_runtime_once() -> None:
    """`run` types none of them again."""
    ran = run("run", "--help")
    assert ran.code == 0
    own, complete, bench = re.split(r"With --\w+.*, the options of.*:\n", ran.out)
    assert all(f"--{name} " in own for name in ("model", "variant", "bench", "stack", "set", "json", "save"))
    assert all(complete.count(f"  --{name} ") == 1 for name in ("prompt", "tokens", "tp", "timeout"))
    assert all(bench.count(f"  --{name} ") == 1 for name in ("prompt", "repeats", "emulate", "tp", "timeout", "trace"))
    assert "--model" not in complete + bench


def test_a_catalog_model_travels_as_its_config() -> None:
    spec, stack, config = _resolve("8b", "gpt-fast", {"model.layers": "4", "stack.attention": "flash"})
    assert (spec.layers, stack.attention) == (4, "flash")
    assert (config["num_hidden_layers"], config["hidden_size"]) == (4, 4096)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--model", "8b"), "--bench"),
        (("--model", "9x", "--bench"), "unknown model"),
        (("--model", "8b", "--bench", "--set", "gpu.sms=3"), "model or stack"),
        (("--model", "8b", "--bench", "--set", "model.max_positions=3"), "unknown setting"),
        (("--model", "8b", "--bench", "--set", "stack.frontend=1ms"), "unknown setting of a real run"),
        (("--model", "8b", "--bench", "--save", "x.csv"), "must end in .json or .txt"),
    ],
)
def test_what_the_command_line_refuses(arguments: tuple[str, ...], part: str) -> None:
    ran = run("run", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert part in ran.err


def test_without_torch_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    ran = run("run", "--model", "8b", "--bench")
    assert ran.code == 4
    assert f"hint: {install_command('runtime')}" in ran.err


class Clock:
    """A microsecond passes with every look at it."""

    now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_link_carries_one_message_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ladder_sim_runtime.comm.emulate.time", clock)
    emulated = EmulatedLink(2, LatencyTable([(1, 0.01), (1e9, 0.01 * 1.000001)]))
    first, second = emulated.all_reduce(torch.zeros(1)), emulated.all_reduce(torch.zeros(1))
    first.wait()
    assert clock.now_s == pytest.approx(0.01, abs=1e-5)
    second.wait()
    assert clock.now_s == pytest.approx(0.02, abs=1e-5)


def test_a_table_in_other_units_is_refused() -> None:
    """Regression: a wait of thirty years ended in a traceback, and one of a minute on a GPU in a shorter one."""
    link = EmulatedLink(2, LatencyTable([(1, 1e9), (2, 1e9)]))
    with pytest.raises(UsageError, match=r"a message of 4 bytes takes 2e\+09 s by the table: must be at most 60 s"):
        link.all_reduce(torch.zeros(1))


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
    with pytest.raises(UsageError):
        LatencyTable.from_file(file)


def test_a_model_that_does_not_fit_says_what_would(model: Path) -> None:
    config = BenchConfig(model=model, variants=("ladder",), batch=10**9, prompt=16, gen=4)
    with pytest.raises(InfeasibleError, match=r"a batch of \d+ fits"):
        bench(config, EngineConfig(), CommConfig())
