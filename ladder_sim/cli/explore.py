"""`ladder-sim explore`: the what-if explorer in the browser."""

import gc
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ladder_sim.cli.options import ScenarioFlags, split_names, with_options
from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim.graph.variants import canonical

if TYPE_CHECKING:
    from ladder_sim.explorer.allowlist import Known

ANY = "0.0.0.0"
# new objects that may stand until the garbage collector looks through them
_COLLECTED_AFTER = 50_000
_PAGE = "Page"


@with_options
def explore(
    flags: ScenarioFlags,
    variant: Annotated[
        list[str] | None, typer.Option(help="As in predict; the page starts with them.", rich_help_panel=_PAGE)
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes any that is free.", rich_help_panel=_PAGE)] = 8050,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; other machines reach 0.0.0.0.", rich_help_panel=_PAGE),
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the address.", rich_help_panel=_PAGE)] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write a page that needs no server (.html) instead.", rich_help_panel=_PAGE),
    ] = None,
) -> None:
    """Open a page in the browser that shows at once what each variant does as the knobs are turned."""
    from ladder_sim.explorer.allowlist import Known
    from ladder_sim.explorer.offline import standalone_page
    from ladder_sim.explorer.queries import Answers

    # no engine and no jitter: the page answers at once
    flags.point()
    known = Known.of(cluster=flags.arguments["cluster"], stack=flags.arguments["stack"], profile=flags.profile)
    query = _query(flags, split_names(variant), known)
    if export is not None:
        if export.suffix.lower() != ".html":
            raise UsageError(f"--export '{export}': the extension says no web page", hint="name it like page.html")
        from ladder_sim.cli.output import write

        write(standalone_page(Answers(known).found(query), known), export, flag="--export")
        return
    _serve(known, query, host=host, port=port, opened=not no_open)


def _query(flags: ScenarioFlags, variants: list[str], known: "Known") -> str:
    """What the page starts with."""
    from ladder_sim.explorer.allowlist import model_names
    from ladder_sim.explorer.state import State
    from ladder_sim.specs import catalog

    model = flags.arguments["model"]
    spec = None if model.lower() in model_names() else catalog.model(model)
    names = {
        "model": spec.name if spec else model.lower(),
        "cluster": known.name_of(flags.arguments["cluster"]),
        "stack": known.name_of(flags.arguments["stack"]),
    }
    state = State(
        arguments=flags.arguments | names,
        shape=spec,
        profile=None if flags.profile is None else known.name_of(flags.profile),
        ignore_memory=flags.ignore_memory,
        settings=flags.settings,
        variants=tuple(map(canonical, variants)),
    )
    # mistakes are reported here, not on the page
    State.parse(state.query(), known).scenario(known)
    return state.query()


def _serve(known: "Known", query: str, *, host: str, port: int, opened: bool) -> None:
    """Answer until interrupted."""
    if find_spec("dash") is None:
        raise MissingDependencyError(
            "the explorer needs dash, which is absent", hint='pip install "ladder-sim[explorer]", or --export page.html'
        )
    from ladder_sim.explorer.server import LOOPBACK, make_app, serving

    server = serving(make_app(known, query, hosts=None if host == ANY else (*LOOPBACK, host)), host, port)
    shown = "127.0.0.1" if host == ANY else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{server.port}/"
    print(f"explorer: {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    if host not in LOOPBACK:
        print("warning: every machine that reaches this address can use it", file=sys.stderr)
    if opened:
        import webbrowser

        webbrowser.open(address)
    # what is loaded by now stays, and answers leave little behind: looking through it all took a quarter of the time
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER)
    server.serve_forever()
