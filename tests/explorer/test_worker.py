"""Answers that take long: in a process of their own, one after the other, and only while a page waits for them."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path

import pytest

from ladder_sim.errors import LadderSimError
from ladder_sim.explorer import worker as worker_module
from ladder_sim.explorer.worker import LostError, StaleError, Worker
from tests.support.gates import Absent, compute
from tests.support.waiting import until


@pytest.fixture(scope="module")
def worker() -> Worker[str]:
    return Worker(compute)


def test_a_question_has_a_result_before_it_is_answered_and_is_computed_once(
    worker: Worker[str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = worker.ask("a", ("wait", str(gate)))
    until(lambda: job.result == "waiting")
    assert not job.done
    gate.touch()
    assert worker.answer(("wait", str(gate))) == str(gate)
    (tmp_path / "gate.end").unlink()
    assert worker.ask("b", ("wait", str(gate))) is job
    assert worker.answer(("say", "next")) == "next"
    assert not (tmp_path / "gate.end").exists()


def test_a_newer_question_gives_the_older_up(worker: Worker[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    older = worker.ask("a", ("wait", str(gate)))
    until(lambda: older.updates)
    newer = worker.ask("a", ("say", "newer"))
    until(lambda: newer.done)
    assert newer.result == "newer"
    # Regression: what it had reported by then was its answer
    with pytest.raises(StaleError):
        older.future.result()
    gate.touch()
    assert worker.answer(("say", "another")) == "another"
    assert not (tmp_path / "gate.end").exists()
    # asked again, it is computed
    assert worker.answer(("wait", str(gate))) == str(gate)


def test_who_waits_is_told_that_its_page_has_asked_another_question(worker: Worker[str], tmp_path: Path) -> None:
    question = ("wait", str(tmp_path / "gate"))
    with ThreadPoolExecutor() as pool:
        older = pool.submit(worker.answer, question, "a")
        until(lambda: "a" in worker.ask("b", question).pages)
        worker.leave("b")
        assert worker.answer(("say", "newer"), "a") == "newer"
        with pytest.raises(StaleError):
            older.result()


def test_what_another_page_waits_for_goes_on(worker: Worker[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    shared = worker.ask("a", ("wait", str(gate)))
    worker.ask("b", ("wait", str(gate)))
    until(lambda: shared.updates)
    newer = worker.ask("a", ("say", "of a"))
    left = worker.ask("c", ("say", "of c"))
    assert [worker.ahead(job) for job in (shared, newer, left)] == [0, 1, 2]
    worker.leave("c")
    gate.touch()
    until(lambda: newer.done)
    assert shared.done
    assert (shared.result, newer.result, left.result) == (str(gate), "of a", None)


def test_errors_are_those_of_the_question_and_the_worker_goes_on(worker: Worker[str]) -> None:
    with pytest.raises(LadderSimError, match="too much") as refused:
        worker.answer(("refuse", "too much"))
    assert refused.value.hint == "ask otherwise"
    with pytest.raises(LadderSimError, match="the simulator failed"):
        worker.answer(("fail", ""))
    with pytest.raises(LostError):
        worker.answer(("die", ""))
    assert worker.answer(("say", "alive")) == "alive"
    # Regression: who asked the same again got the old error
    with pytest.raises(LostError) as died:
        worker.answer(("die", ""))
    assert "to try again" in died.value.hint


def test_a_process_that_ends_while_it_starts_is_said_and_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "there"
    absent: Worker[str] = Worker(Absent(file))
    for question in (("say", "one"), ("say", "one")):
        with pytest.raises(LostError, match="did not start or was ended") as refused:
            absent.answer(question)
        assert "try again" in refused.value.hint
    file.touch()
    assert absent.answer(("say", "one")) == "one"


def test_a_process_that_says_nothing_is_ended_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: its page waited for ever, and every later question behind it."""
    hung: Worker[str] = Worker(compute)
    others = set(active_children())
    # it starts within the deadline that pages have
    assert hung.answer(("say", "one")) == "one"
    (process,) = set(active_children()) - others
    monkeypatch.setattr(worker_module, "SILENCE_S", 0.0)
    with pytest.raises(LostError, match=r"was ended.*: it reported nothing for 0 seconds") as refused:
        hung.answer(("hang", ""))
    assert "to try again" in refused.value.hint
    until(lambda: process not in active_children())
    monkeypatch.undo()
    assert hung.answer(("say", "two")) == "two"


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), OSError(11, "Resource unavailable")])
def test_a_process_that_cannot_be_made_is_said_and_tried_again(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: who asked then, and whoever asked later, waited for ever."""

    def refuse(_: object) -> None:
        raise fault

    refused: Worker[str] = Worker(compute)
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
        with pytest.raises(LostError, match=f"did not start.*: .*{fault.args[-1]}"):
            refused.answer(("say", "now"))
        # a page that looks from time to time sees it once
        job = refused.ask("page", ("say", "now"))
        until(lambda: job.done)
        assert refused.ask("page", ("say", "now")) is job
        assert job.lost
    assert refused.answer(("say", "now")) == "now"
    again = refused.ask("page", ("say", "now"))
    assert (again.result, again.lost) == ("now", False)
