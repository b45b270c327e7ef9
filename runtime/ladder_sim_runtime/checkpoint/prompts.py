"""Prompts for a checkpoint: text to tokens and back by its tokenizer.json, and all that is checked before a run.

Imports no torch: the launcher refuses a prompt that cannot be encoded before any rank is started.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from ladder_sim.errors import MissingPackageError, UsageError
from ladder_sim.hf.fields import read_object
from ladder_sim.system.files import read_text
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim_runtime.checkpoint.files import CONFIG, Checkpoint
from ladder_sim_runtime.config import CompletionConfig, ModelConfig

if TYPE_CHECKING:
    import tokenizers

Result = TypeVar("Result")

# new tokens by default, unless the model's context is shorter
_GEN = 512
# those of 250,000 tokens have 33 MB
_LIMIT_BYTES = 256 * 2**20
_DAMAGED = "edited or damaged? download it again"


class Text:
    """The tokenizer of a checkpoint."""

    def __init__(self, file: Path, tokenizer: "tokenizers.Tokenizer") -> None:
        self._file, self._tokenizer = file, tokenizer

    @classmethod
    def open(cls, folder: Path, shape: ModelConfig) -> Self:
        """Read tokenizer.json.

        Raises UsageError if it is missing or damaged, or has tokens without an embedding in the model.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingPackageError("prompts need tokenizers") from None
        file = folder / "tokenizer.json"
        text = read_text(file, what="a checkpoint with its tokenizer.json", limit_bytes=_LIMIT_BYTES, error=UsageError)
        tokenizer = _library(file, lambda: Tokenizer.from_str(text))
        needed = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        # models may have more rows, for alignment
        if needed > shape.vocab:
            raise UsageError(
                f"{file}: {needed} tokens, but the model's vocabulary has {shape.vocab}",
                hint="use the tokenizer of these weights",
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(file, tokenizer)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, including those that the tokenizer adds, usually one at the beginning."""
        ids: list[int] = _library(self._file, lambda: self._tokenizer.encode(text).ids)
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return _library(self._file, lambda: str(self._tokenizer.decode(list(tokens))))


def _library(file: Path, call: Callable[[], Result]) -> Result:
    """Return what a call of the tokenizers library returns; raise UsageError if it fails in any way."""
    try:
        return call()
    except BaseException as error:
        # the library raises nothing narrower, and a panic of its Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UsageError(f"{file}: {error}", hint=_DAMAGED) from None


def end_tokens(folder: Path) -> frozenset[int]:
    """Return the end tokens: `eos_token_id` in generation_config.json, else in config.json; maybe none."""
    for name in ("generation_config.json", CONFIG):
        if (folder / name).exists():
            value = read_object(folder / name, what=f"the checkpoint's {name}").get("eos_token_id")
            if value is not None:
                tokens = value if isinstance(value, list) else [value]
                if not all(isinstance(token, int) for token in tokens):
                    raise UsageError(f"{folder / name}: eos_token_id is {value!r}: must be a token or a list of them")
                return frozenset(tokens)
    return frozenset()


@dataclass(frozen=True, slots=True)
class CompletionInput:
    """The checked input of a `complete`."""

    checkpoint: Checkpoint
    """Headers only."""
    wiring: Wiring
    """Wiring of the decoder."""
    prompts: list[list[int]]
    """Tokens: those of texts, then those that were given."""
    gen: int
    """Maximum of new tokens of each prompt."""
    ends: frozenset[int]
    """Tokens that end an answer."""


def prepare_completion(config: CompletionConfig) -> CompletionInput:
    """Read everything but the weights.

    Raises UsageError if a file is damaged or does not fit the others, or a prompt is longer than the model's context;
    InfeasibleError if the ranks do not divide the model.
    """
    checkpoint = Checkpoint.open(config.model)
    shape = checkpoint.shape
    shape.check_ranks(config.tp, config.ep)
    shape.layers_of(0, config.pp)
    wiring = lay_out(shape.variant if config.variant == "auto" else config.variant, shape.layers, shape.ladder_layers)
    shape.check_wiring(wiring, config.tp)
    text = Text.open(config.model, shape) if config.prompts else None
    prompts = [text.encode(prompt) for prompt in config.prompts] if text else []
    prompts += map(list, config.ids)
    for prompt in prompts:
        if not prompt or max(prompt) >= shape.vocab:
            raise UsageError(f"prompt {prompt}: must be tokens from 0 to {shape.vocab - 1}, one or more")
    longest = max(map(len, prompts))
    gen = config.gen or max(1, min(_GEN, shape.max_positions - longest))
    hint = f"the longest prompt has {longest}: shorten it, or give a smaller --gen"
    shape.check_context(longest + gen, hint=hint)
    return CompletionInput(checkpoint, wiring, prompts, gen, end_tokens(config.model))
