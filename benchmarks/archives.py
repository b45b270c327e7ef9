"""Writes the table of evidence/README.md, of the archives next to it.

python -m benchmarks.archives
"""

from collections.abc import Sequence
from pathlib import Path

from ladder_sim.report.archive import archives_table
from ladder_sim.system.files import write_file
from ladder_sim.validation.archive import is_archive, read_archive

FOLDER = Path(__file__).resolve().parents[1] / "evidence"
# ends what is written by hand
MARK = "Rehearsals do not count.\n\n"


def archives_in(folder: Path) -> Sequence[Path]:
    """Archives of a folder, by name."""
    return [path for path in sorted(folder.iterdir()) if is_archive(path)]


def page(folder: Path) -> str:
    """The README of a folder of archives, with the table that is made of them."""
    by_hand, _, _ = (folder / "README.md").read_text("utf-8").partition(MARK)
    return f"{by_hand}{MARK}{archives_table([read_archive(path) for path in archives_in(folder)])}"


if __name__ == "__main__":
    write_file(FOLDER / "README.md", page(FOLDER))
