"""The view of every wiring and technique side by side."""

from ladder_sim.analysis.versus import versus
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.panel import Panel, Table, page_notes
from ladder_sim.explorer.snippets import IGNORE_MEMORY, written
from ladder_sim.explorer.state import State
from ladder_sim.report.versus import TIED, VersusReport, bound_text
from ladder_sim.specs.arguments import DEFAULTS


def question(state: State) -> State:
    """Return the part of the state that `versus` depends on: no wiring or technique of the page, no other view."""
    return State(
        arguments={**state.arguments, "technique": DEFAULTS["technique"]},
        shape=state.shape,
        profile=state.profile,
        ignore_memory=state.ignore_memory,
        settings=state.settings,
    )


def panel(state: State, allowlist: Allowlist) -> Panel:
    """Return the panel of what each option gains, as `ladder-sim versus` computes it."""
    result = versus(state.scenario(allowlist), **state.how(allowlist))
    report = VersusReport(result)
    document, gains = report.values(), report.gains()
    left_out = [f"left out: {name}: {reason}" for name, reason in document.content["left_out"].items()]
    return Panel(
        verdict=document.content["verdict"],
        figure=report.figure().to_plotly_json(),
        tables=(
            Table(
                title="Gains",
                columns=tuple(gains["limit"].columns),
                groups={group: each.rows for group, each in gains.items()},
            ),
        ),
        note=f"{TIED}; {bound_text(result)}.",
        details=tuple(Table.of(each, title=title) for title, each in report.needs().items()),
        document=document,
        cautions=(*page_notes(result.notes).warnings, *left_out),
    )


def command(state: State, allowlist: Allowlist) -> str:
    """Return the command that compares the same options in a terminal.

    Examples
    --------
    >>> command(State.parse("model=405b&technique=fused-norm&variants=ladder", Allowlist.of()), Allowlist.of())
    'ladder-sim versus --model 405b'
    """
    return written("versus", state, allowlist, "technique", set=state.ignore_memory and IGNORE_MEMORY)
