"""The notebook that tours the package. ``python -m tests.support.notebook`` runs it, and writes what its cells show."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import REPO

TOUR = REPO / "examples" / "tour.ipynb"


def executed(path: Path) -> Any:
    """Run a notebook from its folder; returns it with the outputs of this run."""
    # imported here: a test of this file's names needs neither
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}, record_timing=False)
    return client.execute()


def outputs(notebook: Any) -> list[Any]:
    """Return what the cells of code show."""
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def main() -> None:
    """Write the tour with the outputs of a run."""
    notebook = executed(TOUR)
    # the kernel's version is of the machine that ran it
    notebook["metadata"]["language_info"] = {"name": "python"}
    TOUR.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
