"""What GitHub reads says the same as the project's own files."""

import re
import tomllib

import yaml

import ladder_sim
from tests.conftest import REPO

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_workflow_runs_what_a_change_must_pass_from_the_oldest_python_on() -> None:
    jobs = yaml.safe_load((REPO / ".github" / "workflows" / "tests.yml").read_text("utf-8"))["jobs"]
    runs = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    targets = set(re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text("utf-8"), re.MULTILINE))
    used = set(re.findall(r"^make ([\w-]+)", runs, re.MULTILINE))
    own = set(re.findall(r"^make ([\w-]+)", (REPO / ".ci" / "run").read_text("utf-8"), re.MULTILINE))
    assert {"test", "docs"} <= own <= used <= targets
    assert f">={jobs['test']['strategy']['matrix']['python'][0]}" == PROJECT["requires-python"]


def test_hooks_before_a_commit_are_checks_of_the_suite() -> None:
    hooks = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    assert {hook["name"] for hook in hooks} == {"ruff check", "ruff format", "mypy", "import contracts"}


def test_the_citation_names_the_paper_the_licence_and_the_version() -> None:
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text("utf-8"))
    assert (citation["title"], citation["license"]) == (PROJECT["name"], PROJECT["license"])
    assert citation["references"][0]["identifiers"][0]["value"] in (REPO / "README.md").read_text("utf-8").replace(
        "arXiv ", "arXiv:"
    )
    assert citation["version"] == ladder_sim.__version__
    heading = "## {version} ({date-released})".format_map(citation)
    assert heading in (REPO / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert all(entry["authors"] for entry in (citation, *citation["references"]))
