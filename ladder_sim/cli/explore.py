"""`ladder-sim explore`: the what-if explorer in the browser."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder_sim.cli import flags
from ladder_sim.errors import MissingPackageError, UsageError
from ladder_sim.specs.arguments import DEFAULTS

if TYPE_CHECKING:
    from ladder_sim.explorer.allowlist import Allowlist

ANY = "0.0.0.0"
_PAGE = "Page"


def explore(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="0 picks a free one.", rich_help_panel=_PAGE)] = 8050,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.", rich_help_panel=_PAGE),
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the address.", rich_help_panel=_PAGE)] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write a page that needs no server (.html) instead.", rich_help_panel=_PAGE),
    ] = None,
) -> None:
    """Open a page in the browser that shows what each variant does while you move the controls."""
    from ladder_sim.explorer.allowlist import Allowlist
    from ladder_sim.explorer.downloads import download
    from ladder_sim.explorer.offline import standalone_page
    from ladder_sim.explorer.queries import Queries

    # no engine and no jitter: the page answers at once
    asked = flags.Asked.of(context)
    arguments = {**DEFAULTS, **asked.arguments}
    allowlist = Allowlist.of(cluster=arguments["cluster"], stack=arguments["stack"], profile=asked.profile)
    query = _query(asked, arguments, asked.variants, allowlist)
    if export is not None:
        if export.suffix.lower() != ".html":
            raise UsageError(f"--export '{export}': must end in .html", hint="name it like page.html")
        from ladder_sim.cli.output import write

        queries = Queries(allowlist)
        # its tables of wirings, techniques, plans and measured runs are made by dash
        if find_spec("dash") is None:
            page = standalone_page(queries.answer(query), allowlist)
        else:
            page = download(queries, "page.html", query).content
        write(page, export)
        return
    _serve(allowlist, query, host=host, port=port, opened=not no_open)


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
    )
    # mistakes are reported here, not on the page
    checked = State.parse(state.query(), allowlist)
    checked.scenario(allowlist)
    return checked.query()


def _serve(allowlist: "Allowlist", query: str, *, host: str, port: int, opened: bool) -> None:
    """Serve the page until interrupted."""
    if find_spec("dash") is None:
        raise MissingPackageError("the explorer needs dash", extra="explorer", otherwise="--export page.html")
    from ladder_sim.explorer.server import LOOPBACK, make_app, serve, serving
    from ladder_sim.specs.values import whole

    whole(port, "--port", 0, 65535)

    server = serving(make_app(allowlist, query, hosts=None if host == ANY else (*LOOPBACK, host)), host, port)
    shown = "127.0.0.1" if host == ANY else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{server.port}/"
    print(f"explorer: {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    if host not in LOOPBACK:
        print("warning: anyone who can reach this address can use it", file=sys.stderr)
    if opened:
        import webbrowser

        webbrowser.open(address)
    serve(server)
