"""Calibration profiles: what was measured on one machine, as costs read it.

A profile is a gzipped JSON file (plain JSON works too) whose form `ladder_sim.costs.profile_schema` states. It is the
contract between whoever measures (an importer, a calibration run) and whoever predicts.
"""

import difflib
import gzip
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path

from ladder_sim.costs.table import Curve, RatioTable
from ladder_sim.costs.transfer import Transfer
from ladder_sim.errors import ProfileError

SCHEMA_VERSION = 1
SUFFIX = ".json.gz"
ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0}
# bytes per element of the dtypes that tables come in
_NAME = re.compile(r"[a-z0-9-]+")
# what shipped profiles are called
MAX_DOCUMENT_BYTES = 64 * 2**20
# an unpacked profile beyond this is no profile: shipped ones unpack to about 1 MB
JITTER_KEY = "jitter_sigma"
# in `CalibrationProfile.overheads`: spread of the logarithm of a kernel's time


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """Where some of a profile's figures come from."""

    what: str
    # which figures
    version: str
    # of the package or program that measured or published them
    licence: str
    # SPDX id of the terms they are published under; empty: own measurements
    files: tuple[str, ...]
    # files of the source that were read
    citation: str
    # how to find it: a package name and version, a URL, a paper


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceGpu:
    """The figures of the measured GPU that the tables' rooflines are drawn with."""

    bf16_flops: float
    # dense peak, FLOP/s
    fp8_flops: float
    # dense peak, FLOP/s; equal to bf16 where the GPU has no fp8
    hbm_bandwidth_Bps: float
    # device memory bandwidth, bytes/s
    kernel_s: float
    # floor of one small kernel, seconds

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s of ``"bf16"`` or ``"fp8"``."""
        return self.fp8_flops if dtype == "fp8" else self.bf16_flops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibrationProfile:
    """Everything measured on one machine."""

    name: str
    # e.g. "h100-sxm"
    gpu: str
    # catalog cluster whose GPU and in-node fabric were measured
    created: str
    # ISO date
    environment: Mapping[str, str]
    # what it was measured under: device, drivers, versions
    sources: tuple[ProfileSource, ...]
    # where the figures come from
    reference: ReferenceGpu
    # the measured GPU's figures: a table's time on it is roofline(reference) * ratio
    gemm: Mapping[str, RatioTable]
    # dtype -> table over m, n, k
    attention_prefill: Mapping[str, Mapping[str, RatioTable]]
    # kernel -> dtype -> table over the coordinates of `costs.coordinates.prefill_point`
    attention_decode: Mapping[str, Mapping[str, RatioTable]]
    # kernel -> dtype -> table over the coordinates of `costs.coordinates.decode_point`
    collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]]
    # op ("all_reduce", "all_gather", "reduce_scatter") -> algorithm -> ranks of one node -> curve
    overlap: Mapping[str, float] = field(default_factory=dict)
    # fitted parameters of compute and communication sharing a GPU; empty: none fitted
    overheads: Mapping[str, float] = field(default_factory=dict)
    # measured launches, waits and floor of small kernels, which take the place of a stack's figures of the same name;
    # jitter; other names are for information; empty: none
    base: str = ""
    # shipped profile that the tables come from; empty: they are this profile's own
    transfer: Transfer | None = None
    # a stack's figures, fitted to end-to-end runs

    @property
    def tables_of(self) -> str:
        """Name of the profile that the tables were measured for."""
        return self.base or self.name

    def is_of(self, gpu: str) -> bool:
        """Whether it was measured on a GPU of this name, as far as its environment tells."""
        device = self.environment.get("device")
        return device is None or gpu.split()[0] in device


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    folder = resources.files("ladder_sim.costs").joinpath("profiles")
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX))


def load_profile(name_or_path: str | os.PathLike[str]) -> CalibrationProfile:
    """Read a profile, and keep it: the same unchanged file is read once.

    Parameters
    ----------
    name_or_path
        Name of a shipped profile, or path of a ``.json.gz`` or ``.json`` file.

    Raises
    ------
    ProfileError
        If there is no such file, or it is not a valid profile.

    Examples
    --------
    >>> profile = load_profile("h100-sxm")
    >>> ratio, in_range = profile.gemm["bf16"].ratio(m=1, n=7168, k=8192)
    >>> bool(in_range)
    True
    """
    path = _find(name_or_path)
    try:
        status = path.stat()
        return _load(path if path.is_absolute() else path.resolve(), status.st_mtime_ns, status.st_size)
    except (OSError, RuntimeError) as error:
        raise ProfileError(f"profile '{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from error


def save_profile(profile: CalibrationProfile, path: str | os.PathLike[str]) -> None:
    """Write `profile`: gzipped unless the name ends in ``.json``, the same bytes for the same profile.

    Raises
    ------
    ProfileError
        If the profile breaks a rule of its schema, or the file cannot be written.
    """
    from ladder_sim.costs.profile_schema import encode

    document = encode(profile)
    target = Path(path)
    try:
        # no time stamp and no file name inside, so that equal profiles are equal files
        target.write_bytes(document if target.suffix == ".json" else gzip.compress(document, 9, mtime=0))
    except OSError as error:
        raise ProfileError(f"profile '{target}' cannot be written: {error.strerror or error}") from error


def _find(name_or_path: str | os.PathLike[str]) -> Path:
    text = os.fspath(name_or_path)
    own = _shipped_file(text)
    if own is not None:
        return own
    shipped = shipped_profiles()
    if not text or "\0" in text:
        raise ProfileError(f"no profile is called {text!r}", hint=f"shipped profiles: {', '.join(shipped) or 'none'}")
    path = Path(text)
    if not path.is_file():
        near = difflib.get_close_matches(text.lower(), shipped, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"shipped profiles: {', '.join(shipped) or 'none'}"
        raise ProfileError(f"no shipped profile and no file is called '{text}'", hint=hint)
    return path


@lru_cache(maxsize=32)
def _shipped_file(name: str) -> Path | None:
    """The file of a profile that comes with the package."""
    if not _NAME.fullmatch(name):
        return None
    file = Path(str(resources.files("ladder_sim.costs").joinpath("profiles", name + SUFFIX)))
    return file.resolve() if file.is_file() else None


@lru_cache(maxsize=32)
def _load(path: Path, mtime_ns: int, size_bytes: int) -> CalibrationProfile:
    """Read the file as it was at `mtime_ns`: a file that is rewritten is read again."""
    from ladder_sim.costs.profile_schema import decode

    return decode(_unpacked(path), origin=f"profile '{path}'")


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not zipped:
            document = file.read(MAX_DOCUMENT_BYTES + 1)
        else:
            try:
                with gzip.GzipFile(fileobj=file) as stream:
                    document = stream.read(MAX_DOCUMENT_BYTES + 1)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                hint = "copy or create it again; it is cut short or damaged"
                raise ProfileError(f"profile '{path}' is not a whole gzip file: {error}", hint=hint) from error
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ProfileError(f"profile '{path}' unpacks to more than {MAX_DOCUMENT_BYTES // 2**20} MiB")
    return document
