"""The command line as a whole: help, exit codes, interruption, pipes, bugs, and the commands other than `predict`."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ladder_sim import __version__
from ladder_sim.cli.commands import COMMANDS as EVERY
from ladder_sim.cli.commands import load
from ladder_sim.cli.flags import knobs_of
from ladder_sim.cli.main import main
from ladder_sim.display.labels import field_text
from ladder_sim.errors import install_command
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.settings import settable
from ladder_sim.wirings.names import FAMILIES
from ladder_sim_calibration.__main__ import main as calibration_main
from tests.conftest import REPO
from tests.support.commands import SMALL, heed_interrupts, process, run
from tests.support.waiting import HANG_S, until

COMMANDS = [(), ("predict",), ("list",), ("calibrate",)]


def test_version() -> None:
    assert run("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(command: tuple[str, ...], flag: str) -> None:
    ran = run(*command, flag)
    assert ran.code == 0
    assert ran.err == ""
    assert f"Usage: {' '.join(('ladder-sim', *command))} " in ran.out


@pytest.mark.parametrize("command", [(), ("calibrate",)])
def test_no_command_prints_help_and_no_empty_error(command: tuple[str, ...]) -> None:
    """Regression: an error without a message followed the help."""
    ran = run(*command)
    assert ran.code == 2
    assert "Usage: ladder-sim" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize(
    "command", [*COMMANDS, ("sweep",), ("breakeven",), ("compare",), ("explore",), ("trace", "predict")]
)
def test_help_is_whole_on_a_narrow_screen(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that is longer than its column ends in an ellipsis."""
    # typer's own --install-completion is wider
    width = 60 if command else 80
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    text = run(*command, "--help").out
    assert max(map(len, text.splitlines())) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_help_names_every_scenario_flag() -> None:
    text = run("predict", "--help").out
    for argument in ARGUMENTS.values():
        assert (f"{argument.flag} " in text) is argument.has_flag
    assert "--set " in text
    # options of the scenario stand before those of the output
    assert text.index("--model") < text.index("--variant") < text.index("--json")


def test_the_shell_completes_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several names the last; techniques with their parameters."""
    for typed, last, words in (
        ("predict --technique token", 3, ["token-split:2", "token-split:3", "token-split:4"]),
        ("sweep --technique none,fused-norm+seq", 3, ["none,fused-norm+sequence-parallel"]),
        ("versus --cluster h200", 3, ["h200-sxm"]),
        ("predict --allreduce one", 3, ["one-shot"]),
    ):
        shell = {"_LADDER_SIM_COMPLETE": "complete_bash", "COMP_WORDS": f"ladder-sim {typed}", "COMP_CWORD": str(last)}
        with monkeypatch.context() as patch:
            for name, text in shell.items():
                patch.setenv(name, text)
            with pytest.raises(SystemExit, match="0"):
                main([])
        assert capsys.readouterr().out.split() == words
    assert "_LADDER_SIM_COMPLETE=complete_bash" in process("--show-completion", "bash").out


def test_an_argument_without_a_flag_is_set_alike_everywhere() -> None:
    """Values of a search, too: dashes and underscores are one."""
    search = ("advise", "--model", "8b", "--gpus", "2", "--tp", "2", "--concurrency", "8", "--json")
    assert "SP" in run(*search, "--set", "sp=true", "--pp", "1").out
    for command in ((*SMALL, "--tp", "2", "--json"), search):
        said, denied, without = (run(*command, *more) for more in (("--set", "sp=true"), ("--set", "sp=false"), ()))
        assert said.out != denied.out == without.out
    assert len(run("sweep", "--model", "8b", "--tp", "2", "--set", "sp=true,false", "--csv").out.splitlines()) == 3
    assert "sp is 'true,false': must be true or false" in run(*SMALL, "--set", "sp=true,false").err
    fp8 = [run(*SMALL, "--json", "--set", f"{name}=fp8").out for name in ("kv_dtype", "kv-dtype", "workload.kv_dtype")]
    assert fp8[0] == fp8[1] != run(*SMALL, "--json").out
    assert json.loads(fp8[0])["variants"] == json.loads(fp8[2])["variants"]


def test_what_a_command_does_not_read_is_not_set() -> None:
    other = run("versus", "--model", "8b", "--set", "jitter=0.1")
    assert "unknown setting 'jitter'" in other.err
    assert "it is a setting of predict, trace export" in other.err
    assert "'burstines'" in (err := run("serve", "--rate", "1", "--set", "burstines=2").err)
    assert "did you mean 'burstiness'?" in err
    listed = run("list", "settings").out
    assert all(name in listed for command in ("predict", "serve", "capacity") for name in knobs_of(command))


def test_a_flag_given_twice_counts_as_given_last() -> None:
    assert run(*SMALL, "--tp", "2", "--tp", "4").out == run(*SMALL, "--tp", "4").out


def test_help_imports_no_simulator() -> None:
    """The program's own help imports no command either: it lists the first sentence of the help of each."""
    code = (
        "import sys; from ladder_sim.cli.main import main; main(['--help']); "
        "commands = {name for name in sys.modules if name.startswith(('ladder_sim.cli.', 'ladder_sim.specs'))}; "
        f"[main([name, '--help']) for name in {list(EVERY)}]; "
        "heavy = {'numpy', 'scipy', 'networkx', 'simpy', 'plotly', 'pandas'} & set(sys.modules); "
        "print(sorted(commands), heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, check=True)
    assert done.stderr == "['ladder_sim.cli.commands', 'ladder_sim.cli.main'] set()\n"


@pytest.mark.parametrize("name", EVERY)
def test_the_list_of_commands_says_what_their_help_says_first(name: str) -> None:
    assert EVERY[name].summary == load(name).help.split("\n\n")[0].replace("\n", " ")


@pytest.mark.parametrize("what", ["models", "clusters", "stacks", "variants", "techniques", "profiles", "settings"])
def test_list(what: str) -> None:
    ran = run("list", what)
    assert ran.code == 0
    assert ran.err == ""
    names = {
        "models": catalog.model_names(),
        "clusters": catalog.cluster_names(),
        "stacks": catalog.stack_names(),
        "techniques": ("fused-norm", "token-split:2|3|4"),
        "variants": (*(family.pattern for family in FAMILIES.values()), "hybrid-NAME:K"),
        "profiles": ("h100-sxm",),
        "settings": settable(),
    }[what]
    assert set(names) <= {line.split()[0] for line in ran.out.splitlines()[1:] if line}
    overview = run("list").out
    assert what in overview
    if what != "settings":
        assert all(name in overview for name in names)


@pytest.mark.parametrize("name", ["405b", "llama-3.1-70b", "h100-sxm", "vllm", "gpt-fast", " H100-SXM "])
def test_show_every_figure_with_its_source(name: str) -> None:
    ran = run("list", name)
    assert ran.code == 0
    figures = dict(line.split(None, 1) for line in ran.out.splitlines())
    assert "name" in figures
    assert "source" in figures
    assert len(figures) > 10
    # what can be set has the name that --set takes; a file alone has the table of an engine's own all-reduces
    dotted = {figure for figure in figures if "." in figure and not figure.startswith("own_allreduce.")}
    shown = {figure for figure in dotted if figure.rpartition(".")[2] not in ("name", "source")}
    assert shown <= set(settable())
    assert len(shown) > 10


def test_show_a_file(tmp_path: Path) -> None:
    folder = REPO / "ladder_sim" / "specs" / "data"
    for kind, name in (("clusters", "h100-sxm"), ("stacks", "vllm")):
        file = tmp_path / f"{name}.toml"
        file.write_text((folder / kind / file.name).read_text("utf-8"))
        assert run("list", str(file)) == run("list", name)


@pytest.mark.parametrize("name", [*catalog.cluster_names(), *catalog.stack_names()])
def test_a_file_to_start_from_is_the_same_again(name: str, tmp_path: Path) -> None:
    ran = run("list", "--toml", name)
    assert (ran.code, ran.err) == (0, "")
    file = tmp_path / "mine.toml"
    file.write_text(ran.out)
    built_in = catalog.cluster(name) if name in catalog.cluster_names() else catalog.stack(name)
    assert catalog.cluster_or_stack(str(file)) == built_in
    assert run("list", "--toml", str(file)).out == ran.out


def test_settings_of_every_kind() -> None:
    """Meaning, unit, default and range of every setting, and each default is in its range."""
    answer = json.loads(run("list", "settings", "--json", "--cluster", "h100-pcie", "--stack", "vllm").out)
    assert set(answer["settings"]) == set(settable())
    for name, setting in answer["settings"].items():
        assert len(setting["description"]) > 5, name
        # read on its own, not below another one
        assert not re.match("The same|They|It |Its ", setting["description"]), name
        default = setting["default"]
        if setting["type"] in ("integer", "number"):
            assert setting.get("minimum", setting.get("exclusiveMinimum")) <= default <= setting["maximum"], name
        elif setting["type"] == "boolean":
            assert isinstance(default, bool), name
        else:
            assert default in setting.get("enum", [default]), name
    assert (answer["settings"]["intra.bandwidth"]["default"], answer["settings"]["intra.bandwidth"]["unit"]) == (
        catalog.cluster("h100-pcie").intra.bandwidth_Bps,
        "B/s",
    )
    assert answer["settings"]["stack.allreduce"]["default"] == catalog.stack("vllm").allreduce
    rows = run("list", "settings", "--model", "8b").out.splitlines()
    # a meaning is cut behind a sentence, not within
    assert not any(row.endswith("e.g") for row in rows)
    assert "inter.allreduce_floor" in {row.split()[0] for row in rows if row.strip()}
    assert any(re.fullmatch(r"model.layers +32 +1 to 10,000 +Decoder layers, .*", row) for row in rows)


def test_the_default_of_a_setting_is_what_a_prediction_uses() -> None:
    """A fit replaces what the catalog states: setting the default by hand changes nothing."""
    settings = json.loads(run("list", "settings", "--json").out)["settings"]
    assert settings["stack.collective_launch"]["default"] != catalog.stack("gpt-fast").collective_launch_s
    given = f"stack.collective_launch={settings['stack.collective_launch']['default']!r}s"
    as_it_is, by_hand = (json.loads(run("predict", *flags, "--json").out) for flags in ((), ("--set", given)))
    assert by_hand["variants"]["ladder"]["request_s"] == as_it_is["variants"]["ladder"]["request_s"]


def test_show_names_what_a_fit_replaces() -> None:
    """Otherwise it prints figures that no prediction uses."""
    settings = json.loads(run("list", "settings", "--json").out)["settings"]
    for name, figure, field in (
        ("gpt-fast", "stack.collective_launch", "stack.collective_launch_s"),
        ("h100-sxm", "host.allreduce_floor", "host.allreduce_floor_s"),
    ):
        shown = dict(line.split(maxsplit=1) for line in run("list", name).out.splitlines())[figure]
        stated, _, rest = shown.partition("  [")
        used = field_text(field, settings[figure]["default"])
        assert stated != used
        assert rest == f"{used} in predictions on h100-sxm under gpt-fast, fitted or measured]"
    assert not any("in predictions" in run("list", name).out for name in ("vllm", "8b"))


def test_the_rate_of_a_link_says_what_it_is_of() -> None:
    """Datasheets state some per node, or both ways together."""
    head, *_ = run("list", "clusters").out.splitlines()
    assert "in the node, per GPU one way" in head
    assert "across nodes, per GPU one way" in head


def test_lists_as_json() -> None:
    for name in ("models", "clusters", "stacks", "variants", "profiles"):
        rows = json.loads(run("list", name, "--json").out)[name]
        assert [next(iter(row.values())) for row in rows] == json.loads(run("list", "--json").out)[name]


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ladder_sim.prediction.predict", interrupt)
    assert run(*SMALL) == (130, "", "error: interrupted\n")


@pytest.mark.slow
def test_interrupt_from_the_keyboard(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = (
        "import pathlib, sys, time, ladder_sim.prediction as p\n"
        f"def slow(*_, **__): pathlib.Path({str(started)!r}).touch(); time.sleep({HANG_S})\n"
        "p.predict = slow\n"
        "from ladder_sim.cli.main import main\n"
        "sys.exit(main(['predict', '--model', '8b']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPO, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as child:
        until(started.exists)
        os.kill(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=HANG_S)
    assert child.returncode == 130
    assert err == "error: interrupted\n"


# interrupts the import of the module that is its first argument
INTERRUPTED_IMPORT = """
import os, signal, sys
module = sys.argv.pop(1)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from ladder_sim.__main__ import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ladder_sim.cli.main", "ladder_sim.errors", "typer", "ladder_sim.prediction"])
def test_interrupt_while_modules_are_imported(module: str) -> None:
    """Regression: in its first 0.2 s a command ended with a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, "predict", "--model", "8b"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=heed_interrupts,
    )
    assert (done.stdout, done.stderr) == ("", "error: interrupted\n")
    assert done.returncode == 130


def test_the_installed_command_is_the_module() -> None:
    """A script that imports more is interrupted with a traceback while it does."""
    scripts = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"ladder-sim": "ladder_sim.__main__:main"}


def test_a_bug_is_one_line_unless_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("of the simulator")

    monkeypatch.setattr("ladder_sim.prediction.predict", broken)
    ran = run(*SMALL)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: ValueError: of the simulator\n  hint: a bug; --debug shows where\n"
    for command in ((*SMALL, "--debug"), ("--debug", *SMALL)):
        err = run(*command).err
        assert err.startswith("Traceback")
        assert 'raise ValueError("of the simulator")' in err


def test_debug_shows_where_an_error_comes_from() -> None:
    ran = run("predict", "--model", "405bb", "--debug")
    assert ran.code == 2
    assert ran.err.startswith("Traceback")
    assert "\nerror: unknown model '405bb'\n" in ran.err


def test_exit_code_of_the_process() -> None:
    ran = process("predict", "--model", "405bb")
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: unknown model '405bb'\n  hint: did you mean '405b'?")
    assert process("predict", "--model", "70b", "--tp", "1").code == 3


@pytest.mark.slow
@pytest.mark.parametrize("command", [("list", "settings"), ("predict", "--model", "8b")])
@pytest.mark.parametrize("reader", ["| head -1", "| true"])
def test_a_closed_pipe_is_no_error(command: tuple[str, ...], reader: str) -> None:
    """Regression: the exit code was 1 where the reader was gone before the first line."""
    ran = process(*command, shell=reader)
    assert (ran.code, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == (reader == "| head -1")


@pytest.mark.slow
def test_a_full_disk_is_no_bug() -> None:
    ran = process("list", "settings", shell="> /dev/full")
    assert ran.code == 1
    assert ran.err == "error: cannot write the output: No space left on device\n  hint: send it elsewhere\n"


def test_output_is_ascii() -> None:
    for command in (SMALL, ("list", "stacks"), ("list", "h100-sxm")):
        assert run(*command).out.isascii()


@pytest.mark.slow
def test_calibrate_show() -> None:
    ran = process("calibrate", "show", "h100-sxm")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("profile h100-sxm, made ")
    assert re.search(r"^gemm bf16 .* \d+\.\d %", ran.out, re.M)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("show", "h100-smx"), 2, ("'h100-smx'", "did you mean 'h100-sxm'?")),
        (("import", "nccl-tests", "none.log", "--cluster", "h100-sxm"), 2, ("none.log: no such file", "hint: ")),
    ],
)
def test_calibrate_errors(arguments: tuple[str, ...], code: int, parts: tuple[str, ...]) -> None:
    ran = process("calibrate", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    assert all(part in ran.err for part in parts)


@pytest.mark.slow
def test_calibrate_passes_debug_on() -> None:
    """Regression: --debug was taken out of the arguments and not passed on to the calibration."""
    assert "Traceback" in process("calibrate", "show", "h100-smx", "--debug").err


@pytest.mark.parametrize("command", [["run", "--model=8b", "--samples"], ["evidence", "--out"]])
def test_measuring_without_torch(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    assert calibration_main([*command, str(tmp_path / "new")]) == 4
    assert not (tmp_path / "new").exists()
    assert capsys.readouterr() == (
        "",
        f"error: measurements need torch, which is not installed\n  hint: {install_command('runtime')}\n",
    )


def test_calibrate_without_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    ran = run("calibrate", "show", "h100-sxm")
    assert ran.code == 4
    assert f"hint: {install_command()}\n" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("command", [("predict", "--model", "8b"), ("calibrate", "show", "h100-sxm"), ("--help",)])
@pytest.mark.parametrize("shell", [">&-", "| head -1 >/dev/null", ">&- 2>&-"])
def test_a_closed_output_is_no_error(command: tuple[str, ...], shell: str) -> None:
    """Python has no stdout then, and rich ends the process when a pipe is closed."""
    ran = process(*command, shell=shell)
    assert ran.code == 0, ran
    assert "Traceback" not in ran.err
    assert "hint: a bug" not in ran.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("explore", "--port", "99999"), "65535"),
        (("explore", "--port", "-1"), "65535"),
        (("sweep", "--model", "8b", "--batch", "1:1e30:x1e5"), "batch is"),
    ],
)
def test_numbers_out_of_any_range_are_refused(command: tuple[str, ...], says: str) -> None:
    ran = run(*command)
    assert ran.code == 2, ran
    assert says in ran.err
    assert "hint: a bug" not in ran.err
