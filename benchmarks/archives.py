"""Writes the table of evidence/README.md, of the archives next to it.

python -m benchmarks.archives
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import table
from ladder_sim.system.files import write_file
from ladder_sim.validation.archive import FIGURES, Archive, is_archive, read_archive

FOLDER = Path(__file__).resolve().parents[1] / "evidence"
# ends what is written by hand
MARK = "Rehearsals do not count.\n\n"


def archives_in(folder: Path) -> Sequence[Path]:
    """Return the archives of a folder, by name."""
    return [path for path in sorted(folder.iterdir()) if is_archive(path)]


def archives_table(archives: Sequence[Archive]) -> str:
    """Return a line for each archive; rehearsals do not count."""
    counted = [archive for archive in archives if not archive.rehearsal]
    if not counted:
        return "No archive has come in yet: nothing here is counted as evidence.\n"
    head = ("archive", "GPU", "predicted at", "rows", *(f"{label}: mean, largest" for label in FIGURES.values()))
    rows = []
    for archive in counted:
        spreads = (_mean_and_most(archive.errors(name)) for name in FIGURES)
        measured = f"{len(archive.measured)} of {len(archive.rows)}"
        rows.append((archive.name, archive.gpu, archive.commit[:12], measured, *spreads))
    return table(head, rows)


def _mean_and_most(errors: Sequence[float]) -> str:
    return f"{sum(errors) / len(errors):.1%}, {max(errors):.1%}" if errors else "-"


def page(folder: Path) -> str:
    """Return the README of a folder of archives, with the table that is made of them."""
    by_hand, _, _ = (folder / "README.md").read_text("utf-8").partition(MARK)
    return f"{by_hand}{MARK}{archives_table([read_archive(path) for path in archives_in(folder)])}"


if __name__ == "__main__":
    write_file(FOLDER / "README.md", page(FOLDER))
