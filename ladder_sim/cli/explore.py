"""`ladder-sim explore`: the what-if explorer in the browser."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder_sim.cli import flags
from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import DEFAULTS

if TYPE_CHECKING:
    from ladder_sim.explorer.allowlist import Allowlist

ANY = "0.0.0.0"
in_page = partial(typer.Option, rich_help_panel="Page")
# of a page that no scenario was given for: an engine that is neither idle nor full
_USUAL = "stack=vllm&concurrency=64"


def explore(
    context: typer.Context,
    port: Annotated[int, in_page(help="0 picks a free one.")] = 8050,
    host: Annotated[str, in_page(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    no_open: Annotated[bool, in_page("--no-open", help="Only print the address.")] = False,
    export: Annotated[
        Path | None, in_page(help="Write the page into a folder that any static host serves instead.")
    ] = None,
) -> None:
    """Open a page in the browser that answers one question with an interval, and shows why."""
    from ladder_sim.explorer.allowlist import Allowlist

    asked = flags.Asked.of(context)
    for text in asked.cautions:
        print(f"warning: {text}", file=sys.stderr)
    arguments = {**DEFAULTS, **asked.arguments}
    allowlist = Allowlist.of(cluster=arguments["cluster"], stack=arguments["stack"], profile=asked.profile)
    query = _query(asked, arguments, asked.variants, allowlist)
    if export is None:
        _serve(allowlist, query or _USUAL, host=host, port=port, opened=not no_open)
        return
    if export.suffix.lower() in (".html", ".htm") or export.is_file():
        raise UsageError(
            f"--export '{export}': must be a folder", hint=f"name it like {export.stem}; its index.html is the page"
        )
    from ladder_sim.explorer.answers import Queries
    from ladder_sim.explorer.export import folder, write_folder

    write_folder(folder(Queries(allowlist), query or _USUAL), export)
    print(f"written: {export}; serve it, or open {export / 'index.html'}", file=sys.stderr)


def _query(asked: flags.Asked, arguments: dict[str, Any], variants: list[str], allowlist: "Allowlist") -> str:
    """Return the query that the page starts with."""
    from ladder_sim.explorer.state import State, model_name
    from ladder_sim.specs import catalog

    model = arguments["model"]
    # an alias stays one in the link, a Hugging Face id becomes the catalog's
    name = model.lower() if model.lower() in allowlist.models else catalog.model_id(model)
    spec = None if name in allowlist.models else catalog.model(model)
    if spec is not None:
        spec = replace(spec, name=model_name(spec.name))
    names = {
        "model": spec.name if spec else name,
        "cluster": allowlist.name_of("cluster", arguments["cluster"]),
        "stack": allowlist.name_of("stack", arguments["stack"]),
    }
    state = State(
        arguments=arguments | names,
        shape=spec,
        profile=allowlist.name_of("profile", asked.profile),
        ignore_memory=asked.knobs["ignore_memory"],
        settings=asked.settings,
        variants=tuple(variants),
        measured=asked.measured or "",
    )
    # mistakes are reported here, not on the page
    checked = State.parse(state.query(), allowlist)
    checked.scenario(allowlist)
    return checked.query()


def _serve(allowlist: "Allowlist", query: str, *, host: str, port: int, opened: bool) -> None:
    """Serve the page until interrupted."""
    from ladder_sim.explorer.server import LOOPBACK, Site, bound, serve
    from ladder_sim.values import whole

    whole(port, "--port", 0, 65535)

    server = bound(Site(allowlist, query), host, port, None if host == ANY else (*LOOPBACK, host))
    shown = "127.0.0.1" if host == ANY else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{server.port}/"
    print(f"explorer: {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    if host not in LOOPBACK:
        print("warning: anyone who can reach this address can use it", file=sys.stderr)
    if opened:
        import webbrowser

        webbrowser.open(address)
    serve(server)
