"""Every bad input: value, rule and way out on stderr, the right exit code, nothing on stdout, no traceback."""

import gzip
import json
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim.cli import main
from ladder_sim.cli.commands import program
from ladder_sim.cli.main import GONE
from ladder_sim.costs.profile_file import SCHEMA
from ladder_sim.errors import UsageError, install_command
from ladder_sim.prediction import predict
from tests.conftest import REPO
from tests.support.commands import SMALL, run
from tests.support.configs import MISTRAL_7B


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///builder/checkout", "dir_info": {}},
        {"url": "file:///builder/checkout", "dir_info": {"editable": True}},
        {"url": "file:///builder/ladder_sim.whl", "archive_info": {}},
    ],
)
def test_a_missing_extra_names_no_path_of_the_machine_that_built_this_copy(
    origin: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: `pip install '/builder/checkout[explorer]'`."""

    class Copy:
        def read_text(self, name: str) -> str:
            return json.dumps(origin)

    monkeypatch.setattr(metadata, "distributions", lambda name: [Copy()])
    assert install_command("explorer").endswith("pip install '.[explorer]'")


def refused(arguments: tuple[str, ...], code: int, *parts: str) -> str:
    """Run a command that has to fail; every one of `parts` has to be in its message."""
    ran = run(*arguments)
    assert ran.code == code, ran.err
    assert ran.out == ""
    message, arrow, hint = ran.err.partition("\n  hint: ")
    assert message.startswith("error: ")
    assert len(message) > len("error: ")
    assert arrow
    assert hint.strip()
    assert "Traceback" not in ran.err
    # one message, one way out
    assert ran.err.count("\n") == 2, ran.err
    for part in parts:
        assert part in ran.err
    return ran.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model", "405bb"), ("unknown model '405bb'", "did you mean '405b'?", "`ladder-sim list models`")),
        (("--model", ""), ("unknown model ''", "`ladder-sim list models`")),
        (("--cluster", "h100-smx"), ("unknown cluster 'h100-smx'", "did you mean 'h100-sxm'?", "list clusters")),
        (("--stack", "vlm"), ("unknown stack 'vlm'", "did you mean 'vllm'?", "list stacks")),
        (("--variant", "lader"), ("unknown variant 'lader'", "did you mean 'ladder'?")),
        (("--variant", "ladder,,standard"), ("unknown variant ''", "known: ", "hybrid-ladder:K")),
        (("--set", "inter.bandwith=1GB/s"), ("unknown setting 'inter.bandwith'", "did you mean 'inter.bandwidth'?")),
        (("--set", "bogus=1"), ("unknown setting 'bogus'", "`ladder-sim list settings`")),
        (("--dtype", "bf61"), ("unknown dtype 'bf61'", "did you mean 'bf16'?")),
        (("--dtype", "int3"), ("unknown dtype 'int3'", "bf16")),
        (("--allreduce", "ncl"), ("unknown all-reduce 'ncl'", "did you mean 'nccl'?")),
        (("--profile", "h100-smx"), ("'h100-smx'", "did you mean 'h100-sxm'?")),
        (("--profile", "no-such"), ("'no-such'", "h100-sxm")),
    ],
)
def test_unknown_name(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    model = () if "--model" in arguments else ("--model", "8b")
    refused(("predict", *model, *arguments), 2, *parts)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("not valid JSON", "the file is empty")),
        (b'{"hidden_size": 4096, "num_', ("not valid JSON", "truncated?")),
        (b"\x80PK\x03\x04\xff\xfe" * 50, ("not UTF-8 text", "a binary file?")),
        (b"[4096, 32]", ("must be a JSON object",)),
        (b'"config"', ("must be a JSON object",)),
        (b"{}", ("num_hidden_layers is missing",)),
        (b"[" * 100_000, ("nested too deeply",)),
    ],
)
def test_config_that_is_no_config(tmp_path: Path, content: bytes, parts: tuple[str, ...]) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    refused(("predict", "--model", str(file)), 2, str(file), *parts)


def test_config_that_is_not_there(tmp_path: Path) -> None:
    file = str(tmp_path / "absent.json")
    refused(("predict", "--model", file), 2, f"{file}: no such file", "nothing is downloaded", "ladder-sim list")
    folder = str(tmp_path / "empty")
    Path(folder).mkdir()
    refused(("predict", "--model", folder), 2, f"{folder}/config.json: no such file")


@pytest.mark.parametrize("field", sorted({*MISTRAL_7B} - {"model_type", "rms_norm_eps", "num_key_value_heads"}))
def test_config_that_lacks_a_field(tmp_path: Path, field: str) -> None:
    file = tmp_path / "my-model.json"
    file.write_text(json.dumps({key: value for key, value in MISTRAL_7B.items() if key != field}))
    refused(("predict", "--model", str(file)), 2, f"{file}: {field} is missing", f'"{field}"')


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size", "num_key_value_heads"])
def test_config_with_an_impossible_figure(tmp_path: Path, field: str) -> None:
    file = tmp_path / "config.json"
    for value in (0, -1, -4096, 10**12, 10**40, 1.5, math.nan, math.inf, "32", True, [32], {}):
        file.write_text(json.dumps({**MISTRAL_7B, field: value}))
        refused(("predict", "--model", str(file)), 2, f"{file}: {field} is ", "must be a whole number from 1 to")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--tp", "6"), ("heads is 32", "not divisible by tp 6", "on 8 GPUs: 1, 2, 4, 8")),
        (("--nodes", "3"), ("heads is 32", "not divisible by tp 24", "on 24 GPUs: 1, 2, 4, 8, 16")),
        (("--gpus-per-node", "3"), ("not divisible by tp 3", "on 3 GPUs: 1, 2")),
        (("--tp", "7"), ("heads is 32", "not divisible by tp 7")),
    ],
)
def test_tp_that_does_not_divide(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused(("predict", "--model", "8b", *arguments), 3, *parts)


@pytest.mark.parametrize(
    ("arguments", "needs", "way_out"),
    [
        (("--model", "70b", "--tp", "1"), "llama-3.1-70b needs 144 GB", "--tp 2"),
        (("--model", "405b"), "llama-3.1-405b needs 111 GB", "--nodes 2 --tp 16"),
        (("--model", "405b", "--gpus-per-node", "4"), "per GPU at TP 4", "--nodes 4 --tp 16"),
        (("--model", "176b", "--tp", "4"), "H100 SXM5 80GB has 85.5 GB (79.6 GiB)", "--tp 7"),
        (("--model", "8b", "--tp", "1", "--batch", "500", "--stack", "vllm"), "8b needs", "--tp 4"),
    ],
)
def test_model_that_does_not_fit(arguments: tuple[str, ...], needs: str, way_out: str) -> None:
    refused(("predict", *arguments), 3, needs, f"{way_out} ", "--set ignore_memory=true")
    # the hint holds: that degree fits, and no smaller one does
    *nodes, _, tp = way_out.split()
    followed = run("predict", *_without("--tp", arguments), *way_out.split(), "--json")
    assert followed.code == 0, followed.err
    assert json.loads(followed.out)["scenario"]["tp"] == int(tp)
    for smaller in range(1, int(tp)):
        assert run("predict", *_without("--tp", arguments), *nodes, "--tp", str(smaller)).code == 3


def _without(flag: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    at = arguments.index(flag) if flag in arguments else len(arguments)
    return arguments[:at] + arguments[at + 2 :]


def test_other_commands_say_what_fits_too() -> None:
    """The memory they name is that of the smallest batch, of the scenario, of the cluster that fails."""
    err = refused(("advise", "--model", "405b"), 3, "at batch 1 llama-3.1-405b needs 105 GB", "--dtype fp8 fits")
    assert "--batch" not in err
    refused(("advise", "--batches", "512", "--tp", "8"), 3, "at batch 512", "or --batches 183 fits")
    refused(("advise", "--model", "405b", "--tp", "8"), 3, "needs 111 GB per GPU at TP 8", "--gpus 16 fits")
    refused(("breakeven", "intra.allreduce_floor=1:9us", "--model", "405b"), 3, "405b needs 111 GB", "--dtype fp8 fits")
    refused(("sensitivity", "--model", "405b"), 3, "405b needs 111 GB", "--dtype fp8 fits", "ignore_memory=true")
    assert "does not fit: needs 111 GB" in run("sensitivity", "--model", "405b", "--set", "ignore_memory=true").out
    refused(("compare", "h100-p5", "h100-sxm", "--model", "405b"), 3, "llama-3.1-405b needs 111 GB")


def test_nothing_fits() -> None:
    err = refused(
        ("predict", "--model", "405b", "--prompt", "10000000"), 3, "no other degree, precision, stack or batch"
    )
    assert "--set ignore_memory=true" in err


@pytest.mark.parametrize("flag", ["--batch", "--prompt", "--gen", "--nodes", "--gpus-per-node", "--tp"])
def test_size_out_of_range(flag: str) -> None:
    name = flag[2:].replace("-", "_")
    for value in ("0", "-1", "1" + "0" * 12, "9" * 300):
        refused(("predict", "--model", "8b", flag, value), 2, f"{name} is ", value[:20], "must be a whole number")


@pytest.mark.parametrize("value", ["x", "1.5", "nan", "", "8 GPUs", "0x10"])
def test_size_that_is_not_a_number(value: str) -> None:
    for flag in ("--batch", "--tp"):
        refused(("predict", flag, value), 2, flag, f"'{value}'", "`ladder-sim predict --help`")


def test_sizes_that_do_not_go_together() -> None:
    refused(("predict", "--tp", "16"), 2, "tp 16 needs 16 GPUs", "there are 1 x 8", "--nodes 2")
    refused(("predict", "--nodes", "100000"), 2, "tp is 800000", "--tp 8")
    refused(("predict", "--nodes", "2", "--tp", "12", "--model", "176b"), 3, "not divisible by tp 12")
    refused(("predict", "--nodes", "2", "--tp", "14", "--model", "176b"), 2, "fill them evenly", "multiple of 8")
    prompt = ("predict", "--model", "8b", "--prompt", "60000000", "--gen", "60000000")
    refused(prompt, 2, "120000000 tokens", "at most 100000000")


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("inter.bandwidth=100GHz", ("inter.bandwidth: '100GHz' has no known unit", "accepted are", "400Gb/s")),
        ("inter.bandwidth=5us", ("'5us' is a time: must be a bandwidth", "B/s")),
        (
            "intra.allreduce_floor=5GB",
            ("intra.allreduce_floor: '5GB' is a size: must be a time", "s, ms, us, ns", "5us"),
        ),
        (
            "intra.allreduce_floor=5GB/s",
            ("intra.allreduce_floor: '5GB/s' is a bandwidth: must be a time", "s, ms, us, ns", "5us"),
        ),
        ("inter.bandwidth=400", ("inter.bandwidth: '400': a bandwidth needs a unit", "400Gb/s or 400GB/s?")),
        ("inter.bandwidth_Bps=400", ("'400': a bandwidth needs a unit", "400Gb/s or 400GB/s?")),
        ("gpu.hbm=80", ("gpu.hbm: '80': a size needs a unit", "80GB or 80GiB?")),
        ("gpu.bf16=989", ("gpu.bf16: '989': a rate of operations needs a unit", "989TFLOP/s or 989PFLOP/s?")),
        ("gpu.hbm=80GHz", ("gpu.hbm: '80GHz' has no known unit", "16 GiB")),
        ("inter.bandwidth=fast", ("'fast' is not a number with a unit",)),
        ("inter.bandwidth=nan", ("'nan' is not a number",)),
        ("inter.bandwidth=1e999", ("'1e999' must be finite",)),
        ("inter.bandwidth=-1GB/s", ("'-1GB/s' must be finite and not negative",)),
        ("inter.bandwidth=0", ("bandwidth_Bps is 0.0", "from 100000")),
        ("gpu.sms=1.5", ("gpu.sms is '1.5'", "must be a whole number")),
        ("model.layers=0", ("layers is 0", "must be a whole number")),
        ("stack.vocab_parallel=maybe", ("stack.vocab_parallel is 'maybe'", "must be true or false")),
        ("stack.cuda_graphs=false", ("unknown stack.cuda_graphs 'false'", "known: all, decode, off")),
        ("stack.gemv_factor=0.9", ("unknown setting 'stack.gemv_factor'", "`ladder-sim list settings` shows all")),
        ("stack.attention=flush", ("unknown stack.attention 'flush'", "did you mean 'flash'?")),
        ("inter.bandwidth", ("--set 'inter.bandwidth' is not KEY=VALUE", "--set inter.bandwidth=100Gb/s")),
        ("inter.bandwidth=", ("is not KEY=VALUE",)),
        ("=5", ("--set '=5' is not KEY=VALUE",)),
        ("", ("--set '' is not KEY=VALUE",)),
    ],
)
def test_bad_setting(setting: str, parts: tuple[str, ...]) -> None:
    refused(("predict", "--model", "8b", "--set", setting), 2, *parts)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("advise", "--max-tpot", "50"), ("--max-tpot: '50': a time needs a unit", "50ms or 50s?")),
        (("advise", "--max-ttft", "2"), ("--max-ttft: '2': a time needs a unit", "2ms or 2s?")),
        (("advise", "--max-tpot", "5GB/s"), ("--max-tpot: '5GB/s' is a bandwidth: must be a time",)),
        (
            ("sweep", "--set", "intra.bandwidth=25:800:+25"),
            ("intra.bandwidth: '25:800:+25': a bandwidth needs a unit", "25:800:+25Gb/s or 25:800:+25GB/s?"),
        ),
        (
            ("sweep", "--set", "intra.allreduce_floor=5,10"),
            ("intra.allreduce_floor: '5': a time needs a unit", "5us or 5ms?"),
        ),
        (
            ("sweep", "--set", "intra.allreduce_floor=1:4:x2us,10"),
            ("intra.allreduce_floor: '10': a time needs a unit",),
        ),
        (("breakeven", "intra.allreduce_floor=1:40"), ("'1:40': a time needs a unit", "1:40us or 1:40ms?")),
        (("breakeven", "intra.allreduce_floor", "--set", "intra.bandwidth=450"), ("'450': a bandwidth needs a unit",)),
        (("sensitivity", "--set", "stack.stream_wait=1"), ("stack.stream_wait: '1': a time needs a unit",)),
        (
            ("compare", "h100-sxm", "h200-sxm", "--set", "host.allreduce_floor=5"),
            ("host.allreduce_floor: '5': a time needs a unit",),
        ),
        (("explore", "--set", "intra.allreduce_floor=5"), ("intra.allreduce_floor: '5': a time needs a unit",)),
    ],
)
def test_a_figure_without_its_unit(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    """It was read in SI units: a limit of 50 was 50 seconds."""
    refused((*arguments, "--model", "8b"), 2, *parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("advise", "--price", "x"), "--price is 'x': must be a number"),
        (("sweep", "--workers", "0"), "--workers is '0': must be greater than or equal to 1"),
        (("sweep", "--workers", "1.5"), "--workers is '1.5': must be a whole number"),
        (("trace", "replay", "x.json", "--max-error", "nan"), "must be greater than or equal to 0"),
        (("breakeven", "batch", "--gain", "nan"), "gain nan: must be above -100%"),
        (("breakeven", "batch=1:8", "--set", "stack.stream_wait=1,2us"), "'1,2us' has no known unit"),
    ],
)
def test_a_number_that_a_flag_does_not_take(arguments: tuple[str, ...], message: str) -> None:
    refused(arguments, 2, message)


@pytest.mark.parametrize(
    ("variant", "parts"),
    [
        ("hybrid-ladder", ("needs a positive whole number K", "'hybrid-ladder:16'")),
        ("hybrid-ladder:0", ("needs a positive whole number K",)),
        ("hybrid-ladder:-3", ("needs a positive whole number K",)),
        ("hybrid-ladder:x", ("needs a positive whole number K",)),
        ("hybrid-ladder:33", ("the model has 32 layers", "'hybrid-ladder:32' or 'ladder'")),
        ("desync", ("needs a positive whole number N", "'desync:4'")),
        ("desync:0", ("needs a positive whole number N",)),
        ("desync:1000", ("the model has 64 blocks", "'upper-bound'")),
        ("parallel:3", ("'parallel' takes no parameter", "write 'parallel'")),
        ("ladder:0", ("needs a positive whole number D", "'standard' for 0")),
        ("ladder:65", ("the model has 64 blocks", "up to 64")),
        ("delayed", ("needs a whole number D (parts of other ranks arrive D blocks late)", "'delayed:2'")),
        ("drop:33", ("the model has 32 layers", "up to 32")),
        ("partial:0", ("needs a positive whole number P up to 100", "'partial:50'")),
        ("partial:101", ("needs a positive whole number P up to 100",)),
        ("farskip:other", ("'farskip' takes no parameter",)),
        ("hybrid-delayed:8", ("'hybrid-delayed' needs a whole number D", "'hybrid-delayed:2:16'")),
        ("hybrid-track:3:2", ("the last 2 layers have 2 layers",)),
        ("hybrid-drop:2", ("unknown variant",)),
        ("upper-bound:1", ("'upper-bound' takes no parameter",)),
    ],
)
def test_bad_variant_parameter(variant: str, parts: tuple[str, ...]) -> None:
    refused(("predict", "--model", "8b", "--variant", variant), 2, f"'{variant}'", *parts)


@pytest.mark.parametrize("algorithm", ["one-shot", "two-shot", "nvls"])
def test_allreduce_that_needs_peer_to_peer(algorithm: str) -> None:
    arguments = (*SMALL, "--allreduce", algorithm, "--no-p2p")
    refused(arguments, 2, f"'{algorithm}'", "needs peer-to-peer", "--allreduce nccl", "--no-p2p")
    assert run(*SMALL, "--allreduce", "nccl", "--no-p2p").code == 0


def shipped_profile() -> dict[str, Any]:
    shipped = REPO / "ladder_sim" / "costs" / "profiles" / "h100-sxm.json.gz"
    document: dict[str, Any] = json.loads(gzip.decompress(shipped.read_bytes()))
    return document


def test_profile_of_a_newer_schema(tmp_path: Path) -> None:
    newer = shipped_profile() | {"schema_version": SCHEMA.version + 1, "a_new_entry": 1}
    file = tmp_path / "newer.json"
    file.write_text(json.dumps(newer))
    wanted = (f"'{file}' has schema_version {SCHEMA.version + 1}", f"reads up to {SCHEMA.version}", "upgrade")
    refused((*SMALL, "--profile", str(file)), 2, *wanted)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"gemm": 5}, ("gemm",)),
        ({"reference": {}}, ("reference.bf16_flops",)),
        ({"surprise": 1}, ("surprise is 1",)),
        ({"schema_version": "one"}, ("schema_version",)),
    ],
)
def test_corrupt_profile(tmp_path: Path, change: dict[str, object], parts: tuple[str, ...]) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(shipped_profile() | change))
    refused((*SMALL, "--profile", str(file)), 2, str(file), *parts)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # without the time of day, which would give the test another name in each process
        ("cut.json.gz", gzip.compress(b'{"schema_version": 1}' * 99, mtime=0)[:-9]),
        ("plain.json.gz", b"not gzip at all"),
        ("binary.json", bytes(range(256))),
        ("empty.json", b""),
        ("object.json", b"{}"),
    ],
)
def test_profile_that_is_no_profile(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    refused((*SMALL, "--profile", str(file)), 2, str(file))


def test_formats_exclude_each_other() -> None:
    refused((*SMALL, "--json", "--csv"), 2, "--json and --csv exclude each other")


def test_save_where_nothing_can_be_saved(tmp_path: Path) -> None:
    recorded = ("trace", "import", str(REPO / "tests" / "data" / "traces" / "cuda_event_sync.json.gz"))
    missing = tmp_path / "missing" / "x.json"
    refused((*recorded, "--save", str(missing)), 2, f"'{missing}' cannot be written", "No such file", "folder")
    for name in ("x.foo", "x", "x.json.bak"):
        measured = ("run", "--bench", "--model", "8b", "--save", str(tmp_path / name))
        refused(measured, 2, name, "must end in .json or .txt", "or add --json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("predict", "--modle", "8b"), ("--modle", "--model", "`ladder-sim predict --help`")),
        (("predict", "--model"), ("'--model' requires an argument", "--help")),
        (("predict", "8b"), ("(8b)", "write --model 8b")),
        (("predct",), ("'predct'", "--help")),
        (("--verbose",), ("--verbose", "`ladder-sim --help`")),
        (("calibrate", "shw"), ("'shw'", "`ladder-sim calibrate --help`")),
        (("list", "models", "more"), ("'more': only quality", "list quality ladder")),
        (("list", "model"), ("unknown list, model, cluster or stack 'model'", "did you mean 'models'?")),
        (("list", "gpus"), ("'gpus'", "`ladder-sim list` shows all")),
        (("list", "h100-smx"), ("unknown list, model, cluster or stack 'h100-smx'", "did you mean 'h100-sxm'?")),
        (("list", "nothing-like-it"), ("'nothing-like-it'", "`ladder-sim list` shows all")),
        (("list", "absent.toml"), ("absent.toml: no such file", "the TOML file of a cluster or stack")),
        (("list", "--toml", "70b"), ("'70b' is a model", "config.json", "--set")),
        (("list", "models", "--cluster", "h100-sxm"), ("choose the defaults of settings", "list settings")),
        (("list", "absent.json"), ("absent.json: no such file", "config.json")),
        (("list", "models", "--toml"), ("--toml is for one cluster, stack or wiring", "list h100-sxm --toml")),
        (("list", "70b", "--json"), ("'70b' is shown as text", "leave out --json")),
    ],
)
def test_unknown_option_command_or_entry(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused(arguments, 2, *parts)


@pytest.mark.parametrize(
    ("content", "part"),
    [("name = [", "not valid TOML"), ('[gpu]\nname = "x"', "bf16_flops"), ('attention = "flash"', "is missing")],
)
def test_list_of_a_broken_file(tmp_path: Path, content: str, part: str) -> None:
    """Regression: a broken cluster was read as a stack, and the message said what a stack lacks."""
    file = tmp_path / "mine.toml"
    file.write_text(content)
    refused(("list", str(file)), 2, str(file), part)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--set", "jitter=abc"), ("jitter 'abc' is not a number", "'measured'")),
        (("--set", "jitter="), ("--set 'jitter=' is not KEY=VALUE",)),
        (("--set", "jitter=5%"), ("jitter '5%' is not a number", "0.05")),
        (("--set", "jitter=-0.1"), ("jitter -0.1 is not between 0 and 1", "0.05")),
        (("--set", "jitter=2"), ("jitter 2.0 is not between 0 and 1", "0.05")),
        (("--set", "jitter=nan"), ("jitter nan is not between 0 and 1", "0.05")),
        (("--set", "jitter=inf"), ("jitter inf is not between 0 and 1", "0.05")),
        (("--set", "jitter=measured"), ("profile 'h100-sxm-gpt-fast' holds no measured jitter", "give a number")),
        (
            ("--set", "jitter=measured", "--profile", "none"),
            ("profile 'none' holds no measured jitter", "give a number"),
        ),
        (("--set", "seed=-1"), ("seed: '-1' must be finite and not negative",)),
        (("--set", "seed=-1", "--set", "jitter=0.05"), ("seed: '-1' must be finite and not negative",)),
        (("--set", "seed=1.5"), ("seed is '1.5'", "whole number")),
        (("--set", "engine=foo"), ("unknown engine 'foo'", "known: des, fast")),
        (("--set", "engine=vllm"), ("unknown engine 'vllm'", 'it is a stack: write stack="vllm", or --stack vllm')),
        (("--engine", "vllm@0.19"), ("--engine is no flag", "write --stack NAME for what serves")),
        (("--set", "engine=fats"), ("unknown engine 'fats'", "did you mean 'fast'?")),
        (("--set", "engine=dess"), ("unknown engine 'dess'", "did you mean 'des'?")),
        (("--set", "engine="), ("--set 'engine=' is not KEY=VALUE",)),
    ],
)
def test_jitter_seed_or_engine_that_is_none(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused((*SMALL, *arguments), 2, *parts)


# that start processes or servers, or write files
_OTHER_COMMANDS = {
    "run",
    "train",
    "adapt",
    "explore",
    "calibrate",
    "doctor",
    "capture",
    "import",
    "export",
}
_OTHER_OPTIONS = {"--save", "--save-trace", "--plot", "--workers", "--dask", "--resume", "--debug"}
# some that an option may take, and some that none does
WORDS = (
    *("8b", "70b", "h100-sxm", "vllm", "ladder", "standard", "desync:2", "none", "nccl", "bf16", "tpot", "protocol-a"),
    *(
        "1",
        "2",
        "8",
        "0.05",
        "10",
        "inter.allreduce_floor",
        "inter.bandwidth=100Gb/s",
        "stack.stream_wait=1us",
        "batch=1:4",
    ),
    *("", "-1", "0", "nan", "inf", "1e999", "9" * 30, "5us", "400 GB/s", "1:4", "1:x2", "true", "=", "ladder,,", "--"),
    *(
        "/dev/zero",
        "/",
        "no-such.json",
        "no-such.toml",
        "\x1b[31m",
        "\ud800",
        "\N{SNOWMAN}",
        "x" * 5000,
        "../../etc/passwd",
    ),
)


def _commands(group: Any, names: tuple[str, ...] = ()) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Options by command, as the command line itself lists them."""
    options: dict[tuple[str, ...], tuple[str, ...]] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            options |= _commands(command, (*names, name))
        else:
            flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
            options[*names, name] = tuple(sorted(flags - _OTHER_OPTIONS))
    return {names: flags for names, flags in options.items() if not _OTHER_COMMANDS.intersection(names)}


COMMANDS = _commands(program())


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command, with options that it has and words that may fit."""
    names = draw(st.sampled_from(sorted(COMMANDS)))
    words = st.sampled_from(WORDS) | st.text(max_size=6)
    line = draw(st.lists(words, max_size=1))
    for flag in draw(st.lists(st.sampled_from(COMMANDS[names]), max_size=3)) if COMMANDS[names] else ():
        line += [flag, *draw(st.lists(words, min_size=0 if draw(st.integers(0, 5)) == 0 else 1, max_size=1))]
    return [*names, *line]


@pytest.mark.parametrize(
    "arguments",
    [
        ("trace", "predict", "x" * 5000),
        ("validate", "--data", "x" * 5000),
        (*SMALL, "--set", f"plot={'x' * 5000}/p.html"),
        ("sweep", "--model", "8b", "--save", f"{'x' * 5000}.csv"),
    ],
)
def test_a_name_that_is_too_long(arguments: tuple[str, ...]) -> None:
    refused(arguments, 2)


def test_a_message_holds_no_escape_sequence() -> None:
    assert "\\x1b[31mx" in refused(("predict", "--model", "\x1b[31mx"), 2)


@given(line=command_lines())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_command_line_is_run_or_refused(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*line)
    assert not list(tmp_path.iterdir())
    assert ran.code in (0, 2, 3, 4), ran.err
    assert "hint: a bug" not in ran.err
    if ran.code:
        assert ran.err.count("error: ") == 1
        assert ran.err.startswith("error: ")
        assert ran.out == ""
        assert "\x1b" not in ran.err


@pytest.mark.parametrize(("old", "way_out"), GONE.items())
def test_what_has_gone_says_what_replaced_it(old: str, way_out: str) -> None:
    refused((*old.split(), "x", "--json"), 2, old, "any more", way_out)


@pytest.mark.quality
def test_no_hint_and_no_page_names_what_has_gone() -> None:
    """Regression: what scaled no op of a trace was sent to `trace info --modules`, which was gone."""
    files = [REPO / "README.md", *(REPO / "docs").rglob("*.md")]
    files += [path for place in ("ladder_sim", "calibration") for path in (REPO / place).rglob("*.py")]
    texts = {path: path.read_text("utf-8") for path in files if path != Path(main.__file__)}
    assert [(path, old) for path, text in texts.items() for old in GONE if " " in old and old in text] == []


@pytest.mark.parametrize(
    ("command", "flag", "way_out"),
    [
        ("predict", "--ignore-memory", "write --set ignore_memory=true"),
        ("predict", "--plot", "write --set plot=FILE"),
        ("predict", "--save", "redirect the output"),
        ("serve", "--prefill-tp", "write --set prefill_tp=VALUE"),
        ("trace export", "--seed", "write --set seed=VALUE"),
        ("versus", "--kv-dtype", "write --set kv_dtype=VALUE"),
        ("compare", "--sp", "write --set sp=true"),
    ],
)
def test_a_flag_that_a_command_has_lost_says_what_replaced_it(command: str, flag: str, way_out: str) -> None:
    refused((*command.split(), flag, "x"), 2, f"{flag} is no flag", "any more", way_out)


@pytest.mark.parametrize("line", ["trace info x.json --seed 1", "predict --router x", "sweep --speculate 3:0.7"])
def test_a_flag_that_a_command_never_had_is_unknown_as_ever(line: str) -> None:
    assert f"unknown option '{line.split()[-2]}'" in refused(tuple(line.split()), 2)


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ("predict --gpus 8", "did you mean '--gpus-per-node'?"),
        ("predict --slo tpot_p95=30ms", "other commands take it: `versus`, `serve`, `capacity`"),
        ("capacity --model 70b", "--slo: Bounds on times, e.g. ttft_p95=500ms"),
        ("predict 70b", "write --model 70b"),
        ("predict vllm", "write --stack vllm"),
        ("predcit", "`ladder-sim --help` lists the commands"),
        ("predict --model gpt2", "any other is given by its config.json"),
        ("sweep --batch 1..16", "write 1:16:x2"),
        ("sweep --set inter.allreduce_floor=1-50us", "write 1:50:x2us"),
        ("doctor 70b", "`ladder-sim doctor --help` lists the options"),
        ("predict --set seed=1,2", "hint: "),
        ("predict --batch 1,2,4", "`ladder-sim sweep --batch 1,2,4` takes several"),
        ("predict --prompt 4k", "write --prompt 4096"),
        ("compare --price 2,3 h100-sxm h200-sxm", "repeat it: --price 2 --price 3"),
        ("sweep --price $2 --batch 1:2", "a plain number: --price 2"),
        ("breakeven batch --gain 150", "write 150%"),
        ("sweep --set inter.bandwidth=50:800Gb/s", "write 50:800:x2Gb/s or "),
        (
            "predict --set hop_latency=5us",
            "there are host.hop_latency, inter.hop_latency, intra.hop_latency; intra is within a node",
        ),
        ("predict --set nodes=2", "it is a flag: --nodes"),
        ("predict --set stack.frontend_steps=2000", "hint: give a number in that range"),
        ("predict --dtype fp4", "write nvfp4"),
        ("predict --dtype int4", "write w4a16"),
        ("predict --dtype awq", "write w4a16"),
        ("predict --dtype nf4", "not simulated, and no other format stands in"),
        ("predict --set workload.dtype=bfloat16", "write bf16"),
        ("predict --dtype bfloat16", "write bf16"),
        ("predict --model mixtral-8x7", "did you mean 'mixtral-8x7b'?"),
        # a dense model
        ("predict --model deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "nothing is downloaded: save https://"),
        ("predict --model ibm/Granite-72B-Instruct-AWQ", "config.json and pass its path"),
        ("predict --model nvidia/Granite-70B-Instruct-NVFP4", "config.json and pass its path"),
        ("predict --model Qwen/Qwen2.5-72B-Instruct-GGUF", "not simulated, and no other format stands in"),
        ("predict --model ibm/Granite-72B-Instruct-FP8", "config.json and pass its path"),
        ("predict --model Qwen/Qwen2.5-72B-Instrcut", "did you mean 'Qwen/Qwen2.5-72B-Instruct'?"),
        ("predict --model llama-3.3-70b", "models of 70b: llama-2-70b, llama-3.1-70b;"),
        ("predict --model llama-3-70b", "models of 70b: llama-2-70b, llama-3.1-70b;"),
        ("predict --model llama3-70b", "models of 70b: llama-2-70b, llama-3.1-70b;"),
        # no Llama 4
        ("predict --model llama-405b", "models of 405b: llama-3.1-405b;"),
        ("predict --model 72b", "models of 72b: qwen2.5-72b;"),
        ("predict --model 7b", "models of 7b: llama-2-7b, mistral-7b, qwen2.5-7b;"),
        ("predict --cluster h800", "`ladder-sim list h100-sxm --toml > mine.toml`"),
        ("predict --cluster mi250x", "no measurements of it are shipped"),
        ("predict --cluster a100-pcie", "no other GPU stands in for it"),
        ("predict --cluster h100-smx", "did you mean 'h100-sxm'?"),
        ("predict --stack tensorrt-llm", "write trtllm"),
    ],
)
def test_what_newcomers_type_is_answered(arguments: str, way_out: str) -> None:
    refused(tuple(arguments.split()), 2, way_out)


def test_a_way_out_is_one() -> None:
    """What the messages above name is taken."""
    assert run("predict", "--model", "Qwen/Qwen2.5-72B-Instruct", "--variant", "ladder").code == 0
    assert run("sweep", "--set", "inter.bandwidth=50:800:x2Gb/s", "--model", "8b", "--nodes", "2").code == 0
    with pytest.raises(UsageError, match=r"scenario is '70b': must be a Scenario") as caught:
        predict("70b")  # type: ignore[call-overload]
    assert "give a Scenario" in caught.value.hint
