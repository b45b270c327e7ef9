"""Command lines of engines' servers."""

import pytest

from ladder_sim.errors import UsageError
from ladder_sim.specs.server_command import read_server_command
from tests.support.commands import run


@pytest.mark.parametrize(
    ("text", "arguments", "settings", "ignored"),
    [
        ("vllm serve Qwen/Qwen3-32B", {"stack": "vllm", "model": "Qwen/Qwen3-32B", "tp": "1"}, {}, ()),
        (
            "X=1 vllm serve Qwen/Qwen3-32B --tensor-parallel-size=4 --dtype bfloat16 --max-model-len 8192 --host :",
            {"stack": "vllm", "model": "Qwen/Qwen3-32B", "tp": "4", "dtype": "bf16"},
            {"max-model-len": "8192"},
            ("--host",),
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-R1 -dp 8 --enable-expert-parallel --enforce-eager --kv-cache-dtype fp8",
            {
                "stack": "vllm",
                "model": "deepseek-ai/DeepSeek-R1",
                "tp": "1",
                "attention_dp": "8",
                "ep": "8",
                "kv_dtype": "fp8",
            },
            {"stack.cuda_graphs": "off"},
            (),
        ),
        (
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --dp 4 --enable-dp-attention "
            "--mem-fraction-static 0.9 --disable-radix-cache --trust-remote-code",
            {"stack": "sglang", "model": "deepseek-ai/DeepSeek-R1", "tp": "2", "attention_dp": "4"},
            {"mem-fraction-static": "0.9", "disable-radix-cache": "true"},
            ("--trust-remote-code",),
        ),
        (
            "trtllm-serve serve Qwen/Qwen3-32B --tp_size 2 --max_num_tokens 99 --kv_cache_free_gpu_memory_fraction 0.8",
            {"stack": "trtllm", "model": "Qwen/Qwen3-32B", "tp": "2"},
            {"max-num-tokens": "99", "free-gpu-memory-fraction": "0.8"},
            (),
        ),
        (
            "vllm serve Qwen/Qwen3-32B -tp 2 -dp 4 --quantization fp8 --disable-custom-all-reduce",
            {"stack": "vllm", "model": "Qwen/Qwen3-32B", "tp": "2", "dp": "4", "dtype": "fp8", "allreduce": "nccl"},
            {},
            (),
        ),
    ],
)
def test_a_server_is_a_scenario(
    text: str, arguments: dict[str, str], settings: dict[str, str], ignored: tuple[str, ...]
) -> None:
    command = read_server_command(text)
    assert (dict(command.arguments), dict(command.settings), command.ignored) == (arguments, settings, ignored)


def test_a_checkpoint_keeps_its_format() -> None:
    with pytest.warns(UserWarning, match="in w4a16"):
        command = read_server_command("/opt/bin/vllm serve --trust-remote-code Qwen/Qwen3-30B-A3B-AWQ --dtype half")
    assert "dtype" not in command.arguments
    image = read_server_command("docker run vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-32B --speculative-config {}")
    assert (image.arguments["stack"], image.unread) == ("vllm", ("--speculative-config",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls -l", "starts no server that is known"),
        ("vllm serve -tp", "-tp has no value"),
        ("vllm serve -tp 4", "no model"),
        ("vllm serve 'Qwen/Qwen3-32B", "No closing quotation"),
        ("vllm serve foo/Bar-9B", "unknown model 'foo/Bar-9B'"),
        ("vllm serve Qwen/Qwen3-32B -tp four", "tp four: must be a whole number"),
        ("vllm serve Qwen/Qwen3-32B -q bitsandbytes", "quantization bitsandbytes is not simulated"),
        ("python -m sglang.launch_server --model Qwen/Qwen3-32B --tp 8 --dp 3 --enable-dp-attention", "no multiple"),
    ],
)
def test_what_is_no_server_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_server_command(text)


def test_flags_go_before_it_and_what_is_ignored_is_named() -> None:
    line = "vllm serve Qwen/Qwen3-32B -tp 4 --max-num-seqs 16 --port 8000"
    plain = run("predict", "--as", line, "--concurrency", "8")
    assert (
        "nothing here depends on --port: ignored" in run("predict", "--as", line, "--concurrency", "8", "--explain").out
    )
    assert "qwen3-32b bf16, TP 4" in plain.out
    asked = run("predict", "--model", "qwen3-32b", "--stack", "vllm", "--tp", "4", "--concurrency", "8")
    assert plain.out.splitlines()[3:6] == asked.out.splitlines()[3:6]
    assert "TP 2" in run("predict", "--as", line, "--concurrency", "8", "--tp", "2").out
    # an answer that leaves out what may change times says so, whatever its form
    drafted = f"{line} --speculative-config {{}}"
    unread = "of --as, --speculative-config may change times and is not simulated"
    for form in ((), ("--json",), ("--explain",)):
        assert unread in run("predict", "--as", drafted, "--concurrency", "8", *form).out
    assert unread in run("predict", "--as", drafted, "--concurrency", "8", "--csv").err
    # what is not known may change times, too
    assert read_server_command(f"{line} --num-gpu-blocks-override 100 --host ::").unread == (
        "--num-gpu-blocks-override",
    )
    assert "starts no server that is known" in run("predict", "--as", "").err
    # plans are searched where none is asked for
    assert "20 plans" in run("advise", "--as", "vllm serve Qwen/Qwen3-32B", "--concurrency", "8").out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--model 70b --tp 8", ["model is 70b, as its flag says; --as says meta-llama/Llama-3.1-8B", "tp is 8, as"]),
        ("--stack sglang --dtype bf16", ["stack is sglang, as its flag says; --as says vllm", "dtype is bf16, as"]),
        ("--model 8b --tp 4 --stack vllm --dtype fp8", []),
    ],
)
def test_a_flag_that_contradicts_the_command_line_is_said(flags: str, said: list[str]) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B -tp 4 --quantization fp8"
    answer = " ".join(run("predict", "--as", line, *flags.split(), "--explain").out.split())
    assert [text for text in said if text not in answer] == []
    assert ("as its flag says" in answer) == bool(said)
