"""Tables on screens of any width: nothing is cut, and what does not fit is broken sensibly."""

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim import Predictions, Scenario, predict
from ladder_sim.cli.main import main
from ladder_sim.display.labels import LEGEND
from ladder_sim.report.console import show, table, to_text
from ladder_sim.report.prediction import explanation
from tests.support.commands import run
from tests.support.terminal import Terminal

VARIANTS = ["standard", "ladder", "hybrid-ladder:100", "desync:4"]
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    return predict(Scenario(model="405b", nodes=2), VARIANTS)


@pytest.mark.parametrize("load", [{"batch": 64}, {"concurrency": 64}, {"concurrency": 64, "stack": "sglang"}])
def test_the_sources_of_a_time_add_up_to_all_of_it(load: dict[str, Any]) -> None:
    predicted = predict(Scenario(**{"model": "8b", "tp": 4, "stack": "vllm", **load}), ["standard"])
    shares = re.findall(
        r"^  (?:measured|fitted|transferred|roofline|stack) +([\d.]+)%", predicted.explain(), re.MULTILINE
    )
    assert sum(map(float, shares)) == pytest.approx(100.0, abs=0.5)


def explained(predictions: Predictions) -> RenderableType:
    """What `predict --explain` prints."""
    return predictions.report.renderable(explain=True)


def shown(report: RenderableType, width: int, monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """What `show` writes to a terminal of this width."""
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        for name, value in {"COLUMNS": str(width), "TERM": "xterm", **environment}.items():
            patch.setenv(name, value)
        show(report)
    return screen.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 112, 160])
@pytest.mark.parametrize("explain", [False, True])
def test_nothing_is_cut_or_overflows(
    predictions: Predictions, width: int, explain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: at 80 columns times and speedups ended in an ellipsis."""
    report = predictions.report.renderable(explain=explain)
    text = ESCAPE.sub("", shown(report, width, monkeypatch))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [80, 112])
def test_figures_stay_in_one_piece(predictions: Predictions, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ESCAPE.sub("", shown(predictions.report.brief, width, monkeypatch))
    for name, prediction in predictions.items():
        row = next(line for line in text.splitlines() if line.startswith(name))
        assert re.search(rf" {prediction.tokens_per_s.value:.1f} \([\d.]+-[\d.]+\)", text)
        assert f"{prediction.speedup.value:.2f} (" in row or name == "standard"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "predict --model 405b --nodes 2 --explain",
        "predict --model 8b --tp 2 --gen 4 --set jitter=0.05 --variant standard",
        "sweep --tp 2,4 --batch 1:4 --stack gpt-fast,vllm --nodes 1,2 --price 2",
        "breakeven inter.allreduce_floor --model 405b --nodes 2 --gain 10%",
        "sensitivity --model 405b --nodes 2",
        "advise --price 2",
        "advise --model mixtral-8x7b --stack vllm --concurrency 8,16 --gpus 4 --max-tpot 12ms",
        "compare h100-sxm a100-sxm-hdr --price 2 --nodes 2",
        "versus --model 8b --batch 64",
        "validate --level protocol-b",
        "trace info tests/data/traces/nccl_ddp.json.gz",
    ],
)
def test_no_screen_is_too_narrow_for_a_column(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: at 80 columns tables left columns out; at 60 they broke figures in two."""
    arguments = command.split()
    # longer ones, names of kernels, are broken
    words = {word for word in run(*arguments).out.split() if len(word) <= 20}
    for width in (60, 80):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        for name, value in {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}.items():
            monkeypatch.setenv(name, value)
        assert main(arguments) == 0, screen.getvalue()
        narrow = screen.getvalue()
        assert words - set(narrow.split()) == set()
        assert max(map(len, narrow.splitlines())) <= width


def test_the_words_of_a_breakdown_are_explained() -> None:
    """Most of an all-reduce may be hidden and still be on the critical path."""
    for tp, explained in ((8, True), (1, False)):
        text = predict(Scenario(model="8b", tp=tp)).explain()
        assert all((f"{word}: {meaning}" in text) == explained for word, meaning in LEGEND.items())


def test_a_file_holds_plain_lines_that_are_not_broken(predictions: Predictions) -> None:
    text = to_text(explained(predictions))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert len(re.findall(r"^hybrid-ladder:100 ", text, re.M)) == 2
    assert re.search(r"^attn\.attention +math, 8/1 heads, 1024 on 1536 +\w+ +126 ", text, re.M)


def test_ops_name_their_precision() -> None:
    """Linear layers have the model's, the LM head 16 bits; so has attention, over a cache of its own type."""
    scenario = Scenario(model="8b", tp=8, cluster="b200-sxm", stack="trtllm", dtype="nvfp4", batch=4)
    text = to_text(explained(predict(scenario, ["standard", "ladder"])))
    for name, shape in (
        ("attn.qkv", "4 x 4096 x 768, nvfp4"),
        ("lm_head", "4 x 4096 x 16032, bf16"),
        ("attn.attention", "flash, 4/1 heads, 1 on 1280, fp8 cache"),
    ):
        assert len(re.findall(rf"^{re.escape(name)} +{shape} ", text, re.M)) >= 2, name


def test_a_terminal_is_bold_unless_no_color_is_set(predictions: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    report = predictions.report.brief
    assert "\x1b[1m" in shown(report, 112, monkeypatch, TERM="xterm-256color", TTY_COMPATIBLE="1")
    assert "\x1b" not in shown(report, 112, monkeypatch, NO_COLOR="1", TTY_COMPATIBLE="1")


def test_text_columns_take_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a long source left no room for the names next to it."""
    rows = [("name-of-it", "word " * 40, "12.3 ms")]
    text = ESCAPE.sub("", shown(table(("what", "source", "time"), rows, left=2), 60, monkeypatch))
    assert text.count("word") == 40
    assert "name-of-it" in text
    assert "12.3 ms" in text


@given(st.lists(st.text(max_size=12), min_size=4, max_size=4))
def test_no_name_moves_the_cursor(names: list[str]) -> None:
    """Regression: a kernel called `ESC[2J` cleared the screen."""
    shown_text = to_text(Group(Text(names[0]), table(("op", names[1]), [(names[2], names[3])], title=names[0])))
    assert shown_text.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["models", "clusters", "stacks", "variants", "profiles", "settings"])
def test_lists_fit_a_narrow_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # an entry begins at the margin
    lines = run("list", name).out.partition("\n\n")[0].splitlines()
    entries = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert len(set(entries)) == len(entries) > 3
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["list", name]) == 0
    text = screen.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert set(entries) <= {line.split()[0] for line in text.splitlines() if line.strip()}


def test_exports_end_in_one_newline(predictions: Predictions) -> None:
    document = predictions.report.document()
    for text in (document.to_json(), document.to_csv()):
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert text.isascii()


def test_what_was_asked_says_that_gpus_do_not_reach_each_other() -> None:
    text = str(predict(Scenario(model="8b", tp=8, p2p=False), ["standard"]))
    asked = text.splitlines()[1]
    assert asked.startswith("llama-3.1-8b bf16, TP 8 on 8 x H100 SXM5 80GB without P2P, gpt-fast (--stack); ")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"stack": "vllm", "tp": 8}, {"multimem", "one-shot"}),
        ({"stack": "vllm", "tp": 8, "allreduce": "push"}, {"push"}),
        ({"stack": "gpt-fast", "nodes": 2}, {"tree", "nvls-tree"}),
    ],
)
def test_an_explanation_names_the_all_reduces(
    fields: dict[str, object], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `auto` takes in a prefill of 16 MB messages and in decode of 16 KB."""
    predictions = predict(Scenario(model="70b", **fields), ["standard"], ignore_memory=True)
    text = shown(explanation(predictions.values()), 200, monkeypatch)
    rows = [line for line in text.splitlines() if "all_reduce" in line]
    assert {name for row in rows for name in re.findall(r"B, ([a-z][a-z-]+)", row)} == names


def test_an_explanation_names_the_ops_that_differ() -> None:
    """vLLM fuses standard's all-reduces with norms; ladder and parallel, served by the plug-in, have both apart."""
    predicted = predict(Scenario(model="70b", stack="vllm", batch=16), ["standard", "ladder", "parallel"])
    text = to_text(explanation(predicted.values()))
    lines = re.findall(r"^ops that differ from standard's, alone: (.*)$", text, re.MULTILINE)
    _, ladder, _, parallel = ({op.split()[0] for op in line.split(", ")} for line in lines)
    assert ladder == {"all_reduce_norm", "all_reduce", "norm", "add"}
    assert parallel == {*ladder, "gemm"}


def test_every_kernel_of_experts_and_latent_attention_says_where_its_time_comes_from() -> None:
    plan = {"tp": 1, "attention_dp": 8, "ep": 8, "overrides": {"stack.dispatch": "deepep-auto"}}
    scenario = Scenario(model="deepseek-v3", cluster="h200-sxm", stack="sglang", concurrency=64, **plan)  # type: ignore[arg-type]
    text = to_text(explained(predict(scenario, ["standard"])))
    mixed, decode = text.split("standard: one ")[1:]
    sources = {
        row[0]: row[1]
        for row in re.findall(
            r"^((?:attn|mlp)\.\S+) .*? (measured|fitted|transferred|roofline) +\d+ ", decode, re.MULTILINE
        )
    }
    # whole experts in fp8 blocks, latent attention and DeepEP were measured; products of heads are those of plain fp8
    for name in ("mlp.experts", "attn.attention", "attn.qkv_a", "mlp.router", "mlp.dispatch", "mlp.combine"):
        assert sources[name] == "measured", name
    assert sources["attn.k_absorb"] == sources["attn.v_absorb"] == "transferred"
    assert sources["mlp.top_k"] == "roofline"
    assert len(sources) >= 18
    assert "deepep-ll" in decode
    assert "deepep-ht" in mixed
    # shared experts take nothing of a decode step, whose routed ones last longer
    assert decode.count("stream of its own") == 3
    assert "stream of its own" not in mixed
