"""Archives of `calibrate evidence`: what they hold, how far off predictions were, the table of those sent in."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.archives import FOLDER, archives_in, archives_table, page
from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim.validation.archive import Row, is_archive, read_archive
from tests.support.archives import pack
from tests.support.commands import run


def test_an_archive_is_compared_with_what_was_predicted_before_and_with_today(tmp_path: Path) -> None:
    path = pack(tmp_path / "node.tar.gz")
    archive = read_archive(path)
    assert [(row.run, row.variant) for row in archive.measured] == [("first", "standard"), ("first", "ladder")]
    standard, ladder = archive.measured
    for now in (False, True):
        assert standard.error("tpot_s", now=now) == pytest.approx(1 / 1.25 - 1)
        assert ladder.error("tpot_s", now=now) == pytest.approx(0.0)
    assert standard.interval["ttft_s"][0] < standard.measured["ttft_s"] < standard.interval["ttft_s"][1]
    # standard's own speedup is 1 and no error
    assert archive.errors("speedup") == [pytest.approx(0.0)]
    sentence = (
        "node.tar.gz: evidence of NVIDIA H100 80GB HBM3, 2 of 4 rows measured; predictions made before were off by "
    )
    times = "TTFT 10.0% (at most 20.0%), TPOT 10.0% (at most 20.0%), speedup 0.0% (at most 0.0%)"
    assert archive.sentence == f"{sentence}{times}; today's by {times}."
    said = run("validate", str(path), "--explain")
    assert said.code == 0
    assert archive.sentence in " ".join(said.out.split())
    assert "Not measured: second." in said.out
    assert "not measured: second: no time" in said.out
    document = json.loads(run("validate", str(path), "--json", "--set", f"plot={tmp_path / 'figure.html'}").out)
    assert document["sentence"] == archive.sentence
    assert len(document["rows"]) == 4
    assert (tmp_path / "figure.html").exists()


def test_a_rehearsal_is_called_one_and_is_never_evidence(tmp_path: Path) -> None:
    pack(tmp_path / "real.tar.gz")
    pack(tmp_path / "fake.tar.gz", rehearsal="CPUs, 2 ranks", gpu="")
    (tmp_path / "README.md").write_text("# By hand\n\nRehearsals do not count.\n\nold table\n")
    archives = [read_archive(path) for path in archives_in(tmp_path)]
    assert archives[0].sentence.startswith("fake.tar.gz: rehearsal, no evidence (CPUs, 2 ranks), 2 of 4 rows measured")
    table = archives_table(archives)
    assert (
        "| real.tar.gz | NVIDIA H100 80GB HBM3 | 0123456789ab | 2 of 4 | 10.0%, 20.0% | 10.0%, 20.0% | 0.0%, 0.0% |"
        in table
    )
    assert "fake" not in table
    assert page(tmp_path) == f"# By hand\n\nRehearsals do not count.\n\n{table}"
    assert "nothing here is counted" in archives_table(archives[:1])


def test_the_table_of_archives_is_that_of_the_repository() -> None:
    """`python -m benchmarks.archives` writes it."""
    assert (FOLDER / "README.md").read_text("utf-8") == page(FOLDER)


def test_an_archive_without_a_run_says_so(tmp_path: Path) -> None:
    archive = read_archive(pack(tmp_path / "node.tar.gz", measured=False))
    assert "0 of 4 rows measured; nothing to compare." in archive.sentence
    assert run("validate", str(tmp_path / "node.tar.gz"), "--set", f"plot={tmp_path / 'figure.html'}").code == 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(b"no archive"), "cannot be unpacked"),
        (lambda path: path.write_bytes(path.read_bytes()[:400]), "cannot be unpacked"),
        (lambda path: tarfile.open(path, "w:gz").close(), "holds no predicted.json"),
    ],
)
def test_what_is_no_archive_is_refused(damage: Any, says: str, tmp_path: Path) -> None:
    path = pack(tmp_path / "node.tar.gz")
    damage(path)
    with pytest.raises(UsageError, match=says):
        read_archive(path)


def test_entries_that_are_missing_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    for head in ({"rows": []}, {"rows": [{"run": 1}]}, [], {"rows": 3}):
        (tmp_path / "predicted.json").write_text(json.dumps(head))
        with pytest.raises(UsageError, match="damaged"):
            read_archive(tmp_path)
    assert is_archive(tmp_path)
    assert not is_archive(tmp_path / "predicted.json")


@pytest.mark.parametrize(
    ("name", "entry", "value"),
    [
        ("predicted.json", ("rows", 0, "ttft_s"), "fast"),
        ("predicted.json", ("rows", 0, "tpot_s"), float("nan")),
        ("predicted.json", ("rows", 0, "run"), None),
        ("predicted.json", ("gpu",), 3),
        ("predicted.json", ("rows", 0, "scenario", "gen"), float("inf")),
        ("first.json", ("variants", "ladder", "tpot_s"), -1.0),
        ("first.json", ("variants", "ladder", "speedup_95"), [1.0]),
        ("first.json", ("variants", "ladder", "repeats", 0, "decode_s"), float("inf")),
        ("failures.json", ("failures", 0), {}),
    ],
)
def test_a_figure_that_is_no_time_and_a_name_that_is_no_text_are_refused(
    name: str, entry: tuple[str | int, ...], value: object, tmp_path: Path
) -> None:
    with tarfile.open(pack(tmp_path / "node.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "folder" / name
    part = content = json.loads(path.read_text())
    for key in entry[:-1]:
        part = part[key]
    part[entry[-1]] = value
    path.write_text(json.dumps(content))
    said = run("validate", str(tmp_path / "folder"))
    assert said.code == 2
    assert "damaged" in said.err


def test_an_archive_may_be_packed_without_its_folder_and_with_other_files(tmp_path: Path) -> None:
    with tarfile.open(pack(tmp_path / "node.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "._folder").write_bytes(b"as macOS adds")
    for name, around in (("bare.tgz", "."), ("deep.tgz", "a/b")):
        with tarfile.open(tmp_path / name, "w:gz") as again:
            again.add(tmp_path / "._folder", "._folder")
            again.add(tmp_path / "folder", around)
        assert len(read_archive(tmp_path / name).measured) == 2


def test_other_flags_are_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "node.tar.gz")
    assert run("validate", str(path), "--max-error", "8").code == 2


def test_an_error_needs_both_figures() -> None:
    row = Row(run="run", variant="ladder", scenario={}, model="8b", predicted={"ttft_s": 2.0}, measured={"tpot_s": 1.0})
    assert [row.error(name) for name in ("ttft_s", "tpot_s")] == [None, None]


def test_fewer_than_six_repeats_give_a_median_no_interval(tmp_path: Path) -> None:
    for repeats, known in ((5, {"speedup"}), (6, {"speedup", "ttft_s", "tpot_s"})):
        archive = read_archive(pack(tmp_path / "node.tar.gz", repeats=repeats))
        assert all(set(row.interval) == known for row in archive.measured), repeats


def test_a_python_that_cannot_unpack_safely_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: before Python 3.11.4 it was a TypeError."""
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(MissingDependencyError, match="cannot unpack archives safely") as caught:
        read_archive(tmp_path / "node.tar.gz")
    assert "3.11.4" in caught.value.hint
