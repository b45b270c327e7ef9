"""The text that recovery and runs from scratch learn from: two Debian packages, as UTF-8.

    python benchmarks/corpus.py corpus

Downloads python3.11-doc (PSF licence: the sources of Python's documentation) and dict-gcide (GPL-2 or later: the GNU
Collaborative International Dictionary of English), and prints version and SHA-256 of each text. Nothing of it is in
this repository.
"""

import gzip
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path


def python_documentation(root: Path) -> bytes:
    """Its pages, in the order of their names."""
    pages = sorted((root / "usr/share/doc/python3.11").rglob("*.rst.txt"))
    return b"".join(page.read_bytes() for page in pages)


def dictionary(root: Path) -> bytes:
    """From A to Z."""
    packed = root / "usr/share/dictd/gcide.dict.dz"
    return gzip.decompress(packed.read_bytes()).decode("utf-8", errors="replace").encode()


TEXTS: dict[str, Callable[[Path], bytes]] = {"python3.11-doc": python_documentation, "dict-gcide": dictionary}


def main(out: Path) -> None:
    """Write a file for each package."""
    out.mkdir(parents=True, exist_ok=True)
    for package, read in TEXTS.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", archive.name, "."], cwd=folder, check=True)
            text = read(Path(folder))
        (out / f"{package}.txt").write_bytes(text)
        print(f"{archive.name}: {len(text):,} bytes, SHA-256 {hashlib.sha256(text).hexdigest()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
