"""Text: what ends it, how it is sampled and streamed, templates, and what is refused before a rank starts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from ladder_sim.errors import UsageError
from runtime.__main__ import main
from runtime.checkpoint.template import chat_prompt
from runtime.checkpoint.tokenizer import Text, _library
from runtime.comm.base import Alone
from runtime.complete import Completion
from runtime.model.kernels import sample
from runtime.model.wiring import lay_out
from runtime.prepare import CompletionConfig, SamplingConfig, prepare_completion
from runtime.sampling import Sampler
from tests.conftest import REPO
from tests.support.checkpoints import VOCAB, save_checkpoint, tokenizer
from tests.support.commands import process
from tests.support.schemas import check
from tests.support.strategies import damaged

pytestmark = pytest.mark.torch

PROMPT = "Every rank of"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("text")
    return folder, save_checkpoint(folder)


@pytest.fixture
def folder(saved: tuple[Path, Any], tmp_path: Path) -> Path:
    """A checkpoint of its own to be changed; the weights are shared."""
    for file in saved[0].iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def replace(file: Path, content: object) -> None:
    file.unlink(missing_ok=True)
    file.write_text(json.dumps(content))


def greedy(model: Any, tokens: int) -> str:
    """Transformers' text."""
    ids = torch.tensor([tokenizer().encode(PROMPT).ids])
    result = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )
    text: str = tokenizer().decode(result[0, ids.shape[1] :].tolist())
    return text


def test_the_command_line_prints_transformers_greedy_text_from_two_ranks(saved: tuple[Path, Any]) -> None:
    folder, reference = saved
    command = ["run", "--model", str(folder), "--tp", "2", "--prompt", PROMPT, "--gen", "12", "--backend", "gloo"]
    done = subprocess.run([sys.executable, "-m", "ladder_sim", *command], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == greedy(reference, 12) + "\n"
    assert done.stderr.startswith("[12 tokens, ")
    assert "tok/s" in done.stderr
    assert done.stderr.endswith("standard, TP 2]\n")


def test_experts_and_stages_from_the_command_line(tmp_path: Path) -> None:
    reference, degrees = save_checkpoint(tmp_path, "mixtral"), ("--tp", "2", "--pp", "2", "--ep", "2")
    command = ["run", "--model", str(tmp_path), *degrees, "--prompt", PROMPT, "--gen", "12"]
    done = subprocess.run([sys.executable, "-m", "ladder_sim", *command], cwd=REPO, capture_output=True)
    assert (done.returncode, done.stdout.decode()) == (0, greedy(reference, 12) + "\n"), done.stderr


def test_a_batch_is_shown_text_by_text(saved: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, reference = saved
    command = ["complete", "--model", str(folder), "--prompt", PROMPT, "--prompt", "An all-reduce adds", "--gen", "6"]
    assert main(command) == 0
    first, _, second = capsys.readouterr().out.partition("\n\n")
    assert first == f"> {PROMPT}\n{greedy(reference, 6)}"
    assert second.startswith("> An all-reduce adds\n")


def test_json_says_how_each_text_ended(
    saved: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, reference = saved
    text = greedy(reference, 6)
    command = [
        "complete",
        "--model",
        str(folder),
        "--prompt",
        PROMPT,
        "--json",
        "--save",
        str(tmp_path / "out.json"),
    ]
    assert main([*command, "--gen", "20", "--stop", text[3:5]]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "out.json").read_text())
    check("completion", result)
    (completion,) = result["completions"]
    assert (completion["text"], completion["end"]) == (text[: text.index(text[3:5])], "stop")
    assert result["tokens_per_s"] > 0
    assert result["run"]["dtype"] == "fp32"


WORDS = dict(enumerate(["", "He", "llo", " wor", "ld", "!", "ST", "OP"]))


def completion(**changes: Any) -> Completion:
    settings: dict[str, Any] = {"ends": {0}, "stops": (), "maximum": 9} | changes
    return Completion(lambda tokens: "".join(WORDS[token] for token in tokens), **settings)


@pytest.mark.parametrize(
    ("changes", "tokens", "pieces", "reason"),
    [
        ({}, [1, 2, 0], ["He", "llo", ""], "end"),
        ({"maximum": 2}, [1, 2], ["He", "llo"], "length"),
        ({"stops": ("STOP",)}, [1, 6, 7], ["He", "", ""], "stop"),
        # a stop string that only began is shown after all
        ({"stops": ("STOP",)}, [1, 6, 5], ["He", "", "ST!"], None),
        ({"stops": ("STOP",)}, [1, 6, 0], ["He", "", "ST"], "end"),
        ({"stops": ("lo w",)}, [1, 2, 3], ["He", "l", ""], "stop"),
        # of two stop strings the one that comes first in the text
        ({"stops": ("ld", "wo")}, [3, 4], [" "], "stop"),
    ],
)
def test_what_ends_a_text(changes: dict[str, Any], tokens: list[int], pieces: list[str], reason: str | None) -> None:
    text, shown = completion(**changes), []
    for token in tokens:
        shown.append(text.push(token))
        if text.reason:
            break
    assert (shown, text.reason) == (pieces, reason)
    assert text.text == "".join(pieces)


def test_half_a_character_waits_for_its_other_bytes() -> None:
    made = tokenizer()
    text = Completion(made.decode, ends=(), stops=(), maximum=9)
    tokens = made.encode("é!", add_special_tokens=False).ids
    assert len(tokens) == 3
    assert [text.push(token) for token in tokens] == ["", "é", "!"]


def test_sampling_keeps_the_most_likely_and_their_odds() -> None:
    likely_V = torch.tensor([0.4, 0.05, 0.3, 0.2, 0.05])
    chance_B = torch.rand(20000, generator=torch.Generator().manual_seed(0))
    logits_BTV = likely_V.log().expand(20000, 1, 5)

    def odds(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
        return sample(logits_BTV, chance_B, temperature, top_k, top_p).bincount(minlength=5) / 20000

    close = {"atol": 0.015, "rtol": 0.0}
    torch.testing.assert_close(odds(), likely_V, **close)
    torch.testing.assert_close(odds(top_k=2), torch.tensor([4 / 7, 0, 3 / 7, 0, 0]), **close)
    # the two likeliest have 0.7, which is less than 0.75
    torch.testing.assert_close(odds(top_p=0.75), torch.tensor([4 / 9, 0, 3 / 9, 2 / 9, 0]), **close)
    torch.testing.assert_close(odds(top_p=0.5, top_k=2), torch.tensor([1.0, 0, 0, 0, 0]), **close)
    squared = likely_V**2 / (likely_V**2).sum()
    torch.testing.assert_close(odds(temperature=0.5), squared, **close)


def test_a_draw_never_leaves_what_is_kept() -> None:
    logits_BTV = torch.zeros(2, 1, 7)
    assert (sample(logits_BTV, torch.tensor([0.0, 1.0 - 2**-24]), 1.0, 3, 0.9) < 3).all()


def test_a_seed_repeats_its_draws() -> None:
    logits_BTV, wiring = torch.zeros(4, 1, 100), lay_out("standard", 1)
    draws = {}
    for seed in (1, 1, 2):
        sampler = Sampler(SamplingConfig(temperature=1.0, seed=seed), Alone())
        draws.setdefault(seed, []).append(torch.stack([sampler(logits_BTV, wiring) for _ in range(5)]).tolist())
    assert draws[1][0] == draws[1][1] != draws[2][0]


def test_the_chat_template_is_used_where_there_is_one(folder: Path) -> None:
    shape = prepare_completion(CompletionConfig(model=folder, prompts=("x",))).checkpoint.shape
    text = Text.open(folder, shape)
    assert chat_prompt(folder, "Hi") is None
    plain = text.encode_prompt("Hi", raw=False)
    template = "{{ bos_token }}{% for m in messages %}\n<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    replace(
        folder / "tokenizer_config.json",
        {"chat_template": [{"name": "default", "template": template}], "bos_token": {"content": "<s>"}},
    )
    assert chat_prompt(folder, "Hi") == "<s><user>Hi"
    # the template writes the beginning, and the tokenizer adds no second one
    assert text.encode_prompt("Hi", raw=False) == tokenizer().encode("<user>Hi").ids
    assert text.encode_prompt("Hi", raw=True) == plain
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].content) }}")
    with pytest.raises(UsageError, match="the chat template fails: no Hi"):
        text.encode_prompt("Hi", raw=False)
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(UsageError, match="unsafe"):
        text.encode_prompt("Hi", raw=False)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails: maximum recursion depth"),
        ("{{ 'a' * 10**12 }}", "fails: MemoryError"),
        ("{{ {}.x.y }}", "fails: 'dict object' has no attribute 'x'"),
        (
            "{% for a in range(9**5) %}{% for b in range(9**5) %}{% for c in range(9**5) %}{% endfor %}{% endfor %}"
            "{% endfor %}",
            "takes more than 1 s or 1024 MiB",
        ),
        ("{{ 7 ** (10**9) > 1 }}", "takes more than 1 s or 1024 MiB"),
    ],
)
def test_a_chat_template_that_fails_or_does_not_end(
    folder: Path, template: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Division by zero and recursion were reported as bugs, and nested loops never ended."""
    monkeypatch.setattr("runtime.checkpoint.template.CPU_S", 1)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match=words) as raised:
        chat_prompt(folder, "Hi")
    assert raised.value.hint == "--raw leaves it out"


@pytest.mark.parametrize(
    ("file", "content", "ends"),
    [
        ("generation_config.json", {"eos_token_id": [7, 8]}, {7, 8}),
        ("generation_config.json", {}, {1}),
        ("generation_config.json", {"eos_token_id": 0}, {0}),
    ],
)
def test_the_tokens_that_end_a_text(folder: Path, file: str, content: dict[str, Any], ends: set[int]) -> None:
    replace(folder / file, content)
    assert prepare_completion(CompletionConfig(model=folder, prompts=("x",))).text.ends == ends


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    other = tokenizer()
    other.add_tokens(["one more"])
    (folder / "tokenizer.json").unlink()
    other.save(str(folder / "tokenizer.json"))
    with pytest.raises(UsageError, match=f"{VOCAB + 1} tokens, but the model's vocabulary has {VOCAB}"):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": ("word " * 600,)}, "the model's longest context is 512"),
        ({"gen": 511}, "give a smaller --gen"),
        ({"variant": "laddr"}, "unknown variant"),
        ({"gen": 0}, "gen is 0"),
        ({"dtype": "fp8"}, "unknown dtype"),
        ({"stops": ("",)}, "stop string is empty"),
        ({"prompts": ()}, "no prompt"),
        ({"model": Path("nowhere")}, "nowhere/config.json: no such file"),
    ],
)
def test_what_is_refused_before_a_rank_starts(folder: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        prepare_completion(CompletionConfig(**({"model": folder, "prompts": (PROMPT,)} | changes)))


def test_a_context_beyond_a_sliding_window(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "mistral")
    assert prepare_completion(CompletionConfig(model=tmp_path, prompts=("x",), gen=256)).gen == 256


@pytest.mark.parametrize("content", ["{", '{"version": "1.0"}'])
def test_a_tokenizer_that_is_damaged(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))


@pytest.mark.parametrize(
    ("special_tokens", "words"),
    [
        ({}, "post_processor adds '<s>', which is none of its tokens"),
        ({"<s>": {"id": "<s>", "ids": [10**6], "tokens": ["<s>"]}}, f"adds token 1000000: must be below {VOCAB}"),
    ],
)
def test_a_post_processor_that_adds_what_is_no_token(
    folder: Path, special_tokens: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library panicked, with a stack of Rust on stderr; a token without an embedding came as far as the model."""
    made = json.loads(tokenizer().to_str())
    made["post_processor"]["special_tokens"] = special_tokens
    replace(folder / "tokenizer.json", made)
    with pytest.raises(UsageError, match=words):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))
    assert capfd.readouterr().err == ""


def test_a_panic_of_the_library_is_no_bug() -> None:
    class PanicException(BaseException):
        """As the library raises it."""

    def panic() -> None:
        raise PanicException("no entry")

    with pytest.raises(UsageError, match=r"tokenizer\.json: no entry"):
        _library(Path("tokenizer.json"), panic)


def test_a_tokenizer_is_no_device(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is a device: must be a file"):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))


@given(damaged(json.loads(tokenizer().to_str())))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_tokenizer_is_seen(folder: Path, content: bytes) -> None:
    """It is refused, or gives tokens that the model has."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_bytes(content)
    try:
        prepared = prepare_completion(CompletionConfig(model=folder, prompts=(PROMPT,)))
    except UsageError as error:
        assert str(error)  # noqa: PT017
        return
    assert all(0 <= token < VOCAB for token in prepared.prompts[0])
    assert isinstance(prepared.text.decode(prepared.prompts[0]), str)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": 1e-300}, "temperature is 1e-300"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
    ],
)
def test_sampling_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SamplingConfig(**changes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt", "x", "--repeats", "2"), "--repeats is not an option of complete"),
        (("--bench", "--top-k", "2"), "--top-k is not an option of bench"),
        (("--bench", "--prompt", "x"), "'x' is not a number of tokens"),
        (("--prompt", "x", "--variant", "ladder", "--variant", "standard"), "one wiring"),
        (("--prompt", "x", "--save", "x.txt"), "use .json"),
        (("--prompt", "x", "--stack", "vllm"), "--stack is for measurements"),
        ((), "--prompt TEXT"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], words: str) -> None:
    ran = process("run", "--model", "8b", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert "\n  hint: " in ran.err


@pytest.mark.parametrize("package", ["safetensors", "tokenizers", "jinja2"])
def test_a_package_that_is_absent(folder: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["complete", "--model", str(folder), "--prompt", "x"]) == 4
