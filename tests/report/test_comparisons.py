"""Answers of `validate` and `trace`: what they print by default fits a screen, and says what their JSON says."""

from dataclasses import replace
from pathlib import Path

import pytest

from ladder_sim import Trace, validate
from ladder_sim.analysis.compare import compare
from ladder_sim.answer import Answer
from ladder_sim.errors import UsageError
from ladder_sim.report.report import LINES, WIDTH
from ladder_sim.serving.requests.results import read_results
from ladder_sim.traces.trace import Rewired
from ladder_sim.traces.whatif import Changes
from ladder_sim.validation.archive import read_archive
from ladder_sim.validation.dataset import read_dataset, read_table
from ladder_sim.validation.load import compare_loads
from ladder_sim.validation.runs import Compared, RunCheck
from ladder_sim.validation.serving import compare_servings
from ladder_sim.validation.serving_table import read_servings
from tests.conftest import DATA
from tests.support.archives import pack
from tests.support.commands import run

TP = DATA / "traces" / "tp"
H100 = TP / "h100_compiled_graph"


def fits(answer: Answer) -> list[str]:
    """Lines of an answer, which fit a screen and come first with --explain, too."""
    lines = str(answer).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH, max(lines, key=len)
    assert answer.explain().startswith(str(answer))
    assert " ".join(lines).startswith(answer.summary) or len(answer.summary) > WIDTH
    assert answer.summary in " ".join(lines)
    return lines


def test_static_batches_say_the_error_on_rows_that_no_fit_has_seen() -> None:
    for level in ("protocol-b", "roofline"):
        compared = validate("ladder-70b", level)  # type: ignore[call-overload]
        lines = fits(compared)
        rows = compared.to_dict()["levels"][level]["rows"]
        errors = [
            abs(row["speedup_error"])
            for row in rows
            if (row["use"], row["variant"], row["p2p"]) == ("test", "ladder", True)
        ]
        mean = sum(errors) / len(errors)
        assert lines[0].startswith(f"Ladder's speedup is off by {100 * mean:.1f} % on average")
        assert compared.unseen.mean_error["ladder.speedup"] == pytest.approx(mean)
        assert len(compared.rows) == len(rows)
    assert str(validate("ladder-70b", "roofline")) + "\n" == run("validate", "--level", "roofline").out


def test_no_sentence_is_untrue_of_few_rows() -> None:
    data = read_dataset("ladder-70b")
    (level,) = validate(replace(data, measurements=data.measurements[:1]), "roofline")
    for count in (1, 2):
        compared = validate(replace(data, measurements=data.measurements[:count]), "roofline")
        lines = fits(compared)
        assert f"{count} static batch" in lines[1]
    # every row has been fitted
    seen = validate(data, "protocol-b")
    rows = tuple(row for row in seen["protocol-b"] if row.seen)
    fitted = replace(seen, levels={"protocol-b": rows})
    assert fits(fitted)[0] == f"No error is of unseen rows: the fit behind the predictions has used all {len(rows)}."
    nothing = replace(seen, levels={level: tuple(replace(row, tokens_per_s=None, speedup=None) for row in rows[:2])})
    assert fits(nothing)[0] == "None of the 2 rows could be predicted."


def test_servings_and_loads_say_their_errors(tmp_path: Path) -> None:
    servings = compare_servings(read_servings(*read_table("serving-dense")), name="serving-dense")
    error = servings.to_dict()["summary"]["tpot"]["mean_abs_error"]
    assert fits(servings)[0].startswith(f"TPOT is off by {100 * error:.1f} % on average")
    fits(replace(servings, rows=servings[:1]))
    name = "inferencex.json"
    loads = compare_loads(read_results(DATA / "results" / name), {}, {}, name=name)
    summary = loads.to_dict()["summary"]
    assert fits(loads)[0].startswith(f"Mean TPOT is off by {100 * summary['tpot_mean_s']['mean_abs_error']:.1f} %")
    one = replace(loads, rows=loads[:1])
    bias = one.to_dict()["summary"]["tpot_mean_s"]["bias"]
    assert fits(one)[0].startswith(
        f"Mean TPOT is predicted {100 * abs(bias):.1f} % too {'high' if bias > 0 else 'low'}"
    )
    archive = read_archive(pack(tmp_path / "node.tar.gz"))
    assert "off by 10.0 % in TPOT" in fits(archive)[0]
    assert fits(read_archive(pack(tmp_path / "none.tar.gz", measured=False)))[0].startswith("Nothing was measured")


def test_own_runs_say_the_error_of_wirings_held_back() -> None:
    variants = ["standard", "ladder", *(f"desync:{number}" for number in range(2, 12))]
    rows = [
        Compared(variant=each, quantity=name, predicted=1.1, measured=1.0, low=0.9, high=1.2)
        for each in variants
        for name in ("ttft_s", "tpot_s", "request_s", "speedup")
    ]
    check = RunCheck(title="ran", rows=tuple(rows), timed=("standard", "ladder"), missing=("parallel",))
    lines = fits(check)
    assert lines[0] == "Off on average over 10 wirings held back from the profile: TPOT by 10.0 %, speedup by 10.0 %."
    assert "No run: parallel" in str(check)
    assert all(each in check.explain() for each in variants)
    assert fits(replace(check, timed=tuple(variants)))[0].startswith("No wiring was held back")
    assert fits(replace(check, rows=()))[0].startswith("No wiring ran")


@pytest.mark.parametrize(
    ("changes", "variants"),
    [(Changes(), None), (Changes(scale={"gemm": 0.5}), ["standard"]), (Changes(no_launch_gaps=True), ["ladder"])],
)
def test_a_rewired_step_says_what_json_says(changes: Changes, variants: list[str] | None) -> None:
    rewired = Trace(H100).predict(variants, changes=changes)
    lines = fits(rewired)
    values = rewired.to_dict()["variants"]
    assert values.keys() == rewired.keys()
    if "ladder" in values:
        seconds, speedup = values["ladder"]["seconds"], values["ladder"]["speedup"]
        assert lines[0].startswith(f"Rewired as ladder, this recorded step takes {1e3 * seconds:.2f} ms instead of")
        assert lines[0].endswith(f" {speedup:.2f}x.")
    else:
        assert lines[0].startswith("Standard takes ")


def test_a_step_whose_replay_is_off_has_no_rewired_time() -> None:
    refused = Trace(H100).predict(max_error=0.0)
    assert not refused
    assert fits(refused)[0].startswith("No gain can be predicted: the replay of this step is off by -0.1 %")
    assert refused.to_csv() == ""


def test_runs_are_summed_up_replayed_and_compared() -> None:
    trace = Trace(H100)
    info = trace.info()
    exposed = info.to_dict()["ranks"][0]["exposed_s"]
    assert fits(info)[0].startswith(f"Communication is exposed for {1e3 * exposed:.2f} ms of ")
    for shown in (trace.info(spread=True), trace.info(top=1)):
        fits(shown)
    replayed = trace.replay()
    assert fits(replayed)[0].startswith("2 steps are replayed within ")
    changed = trace.replay(Changes(scale={"gemm": 0.5}), no_communication=True)
    (step, *_) = changed.to_dict()["steps"]
    assert step["change"] < 0.0
    assert fits(changed)[0].startswith("With the changes, the replayed steps take ")
    apart = trace.diff(Trace(TP / "h100_flash_graph"))
    (whole, *_) = apart.to_dict()["rows"]
    assert f"({100 * (whole['second_s'] / whole['first_s'] - 1):+.1f} %)" in fits(apart)[0]
    assert fits(trace.diff(trace))[0].startswith("Both runs take ")


def test_the_command_prints_what_python_does() -> None:
    for command, answer in (
        (("predict", str(H100)), Trace(H100).predict()),
        (("info", str(H100)), Trace([H100]).info()),
        (("replay", str(H100)), Trace(str(H100)).replay()),
    ):
        assert run("trace", *command).out == f"{answer}\n"
        assert run("trace", *command, "--explain").out == f"{answer.explain()}\n"
    assert isinstance(answer := Trace(H100).predict(), Rewired)
    assert answer["ladder"].speedup == pytest.approx(1.28, abs=0.005)


def test_what_is_one_is_not_compared_and_what_is_modelled_alike_says_so() -> None:
    for alike in (["h100-sxm", "H100-SXM"], ["vllm", "vllm"]):
        with pytest.raises(UsageError, match=f"{alike[0]} and {alike[1]} are one"):
            compare(names=alike, model="8b")
    answer = " ".join(str(compare(names=["vllm", "vllm@0.32"], model="8b")).split())
    assert "nothing in the model tells vllm from vllm@0.32: their figures are equal" in answer
    assert "nothing in the model" not in str(compare(names=["vllm", "vllm@0.8.1"], model="8b"))


def test_an_answer_names_every_cluster_that_cannot_run() -> None:
    """Two of four clusters were missing without a word: the line with the reasons had no room."""
    fitting, others = ["b200-sxm", "mi300x"], ["h100-sxm", "l40s"]
    answer = " ".join(str(compare(names=[*fitting, *others], model="405b")).split())
    assert "The scenario cannot run on h100-sxm, l40s." in answer
    assert "cannot run" not in str(compare(names=fitting, model="405b"))
