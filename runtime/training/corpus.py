"""Text to tokens, in a file that is memory-mapped. Imports no torch.

Without a tokenizer the tokens are the bytes of UTF-8.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from ladder_sim.errors import MissingPackageError, UsageError
from ladder_sim.system.files import replacing, shown_path, write_file
from ladder_sim.system.schema import Schema
from runtime.checkpoint.tokenizer import Text
from runtime.config import ModelConfig
from runtime.fields import read_object

# of a text that is tokenized at once
_CHUNK_BYTES = 2**20
# of a source's tokens, at its end: held-out text
_HELD_OUT = 0.01
_BYTES = 256
_TOKENS = "tokens.bin"
# of its description
SCHEMA = Schema()


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Tokens of some texts, as int32 in a file."""

    file: Path
    """One source after the other."""
    ends: tuple[int, ...]
    """Where each ends, tokens."""
    sha256: str
    """Of all tokens."""
    bytes_per_token: float
    """Of UTF-8."""

    @classmethod
    def open(
        cls, sources: Sequence[Path], tokenizer: Path | None, shape: ModelConfig, context: int, folder: Path
    ) -> Self:
        """Make tokens of files, or of the files in folders, unless `folder` has those of the same ones already.

        Raises
        ------
        UsageError
            A source is missing, has no text or too little of it, or the tokenizer is not the model's.
        MissingPackageError
            A data set needs pyarrow.
        """
        description, files = folder / f"{_TOKENS}.json", [_files(source) for source in sources]
        sizes = [[(str(file), _size_bytes(file)) for file in each] for each in files]
        # as JSON has it
        made_of = json.loads(json.dumps({"tokenizer": str(tokenizer), "sources": sizes}))
        made: dict[str, Any] = {}
        if description.exists():
            made = read_object(description, what="the description of a training folder's tokens", schema=SCHEMA)
        if made.get("made_of") != made_of:
            made = SCHEMA.marked(made_of=made_of, **_make(folder, files, tokenizer, shape))
            write_file(description, json.dumps(made))
        corpus = cls(
            file=folder / _TOKENS,
            ends=tuple(made["ends"]),
            sha256=made["sha256"],
            bytes_per_token=made["bytes_per_token"],
        )
        for first, stop in (*corpus.training, *corpus.held_out):
            if stop - first <= context:
                raise UsageError(
                    f"{stop - first} tokens in a row: must be more than --context {context}, also in the last "
                    f"{_HELD_OUT:.0%} of each --text, which is held out",
                    hint="give more text, or a shorter --context",
                )
        return corpus

    @property
    def _cuts(self) -> Iterator[tuple[int, int, int]]:
        """Of each source: where it begins, where its held-out part does, and its end."""
        first = 0
        for end in self.ends:
            yield first, end - max(1, round((end - first) * _HELD_OUT)), end
            first = end

    @property
    def training(self) -> tuple[tuple[int, int], ...]:
        """Where each source's part to learn from begins and ends."""
        return tuple((first, cut) for first, cut, _ in self._cuts)

    @property
    def held_out(self) -> tuple[tuple[int, int], ...]:
        """The same of what is held out."""
        return tuple((cut, end) for _, cut, end in self._cuts)


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    files = sorted(file for kind in ("txt", "arrow", "parquet") for file in source.rglob(f"*.{kind}"))
    if not files:
        raise UsageError(
            f"--text {shown_path(source)}: no .txt, .arrow or .parquet in it",
            hint="give text, or a data set as `datasets` saves it or as Hugging Face has it",
        )
    return files


def _size_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise UsageError(
            f"--text {shown_path(file)}: {error.strerror}", hint="give a file or a folder; nothing is downloaded"
        ) from None


def _make(
    folder: Path, sources: Sequence[Sequence[Path]], tokenizer: Path | None, shape: ModelConfig
) -> dict[str, object]:
    text = Text.open(tokenizer, shape) if tokenizer else None
    if text is None and shape.vocab < _BYTES:
        raise UsageError(
            f"a vocabulary of {shape.vocab}: bytes need {_BYTES} tokens", hint="give a tokenizer with --tokenizer"
        )
    try:
        return _write(folder / _TOKENS, sources, text)
    except OSError as error:
        raise UsageError(
            f"--out {folder}: {error.strerror or error}", hint="make room, or choose another folder"
        ) from None


def _write(path: Path, sources: Sequence[Sequence[Path]], text: Text | None) -> dict[str, object]:
    digest, ends, count, size_bytes = hashlib.sha256(), [], 0, 0
    with replacing(path) as out:
        for files in sources:
            for piece in (piece for file in files for piece in _pieces(file)):
                size_bytes += len(piece)
                tokens = array("i", list(piece) if text is None else text.encode(piece.decode(), special=False))
                digest.update(tokens.tobytes())
                out.write(tokens.tobytes())
                count += len(tokens)
            ends.append(count)
    return {"ends": ends, "sha256": digest.hexdigest(), "bytes_per_token": size_bytes / max(count, 1)}


def _pieces(file: Path) -> Iterator[bytes]:
    """Text in pieces, each whole lines of UTF-8."""
    if file.suffix in (".arrow", ".parquet"):
        yield from (f"{row}\n".encode() for row in _rows(file))
        return
    try:
        with file.open("rb") as opened:
            yield from _lines(opened)
    except UnicodeDecodeError:
        raise UsageError(f"{shown_path(file)}: not UTF-8 text", hint="give text, or a data set's folder") from None
    except OSError as error:
        raise UsageError(f"--text {shown_path(file)}: {error.strerror}", hint="give a file that you may read") from None


def _lines(opened: IO[bytes]) -> Iterator[bytes]:
    while lines := opened.readlines(_CHUNK_BYTES):
        piece = b"".join(lines)
        piece.decode()
        yield piece


def _rows(file: Path) -> Iterator[str]:
    """The column `text` of a table of a data set."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackageError("data sets need pyarrow", extra="parquet", otherwise="give text files") from None
    try:
        if file.suffix == ".parquet":
            batches: Any = pyarrow.parquet.ParquetFile(file).iter_batches(columns=["text"])
        else:
            batches = pyarrow.ipc.open_stream(pyarrow.memory_map(str(file)))
        for batch in batches:
            yield from (row for row in batch.column("text").to_pylist() if row)
    except (pyarrow.ArrowException, KeyError) as error:
        raise UsageError(f"{shown_path(file)}: {error}", hint="give a data set with a column `text`") from None
