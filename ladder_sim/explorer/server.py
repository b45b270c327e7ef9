"""The explorer on a port: the Dash app, its safety headers, and its downloads."""

import gc
from collections.abc import Callable, Iterable
from multiprocessing import active_children
from pathlib import Path
from urllib.parse import urlsplit

from dash import Dash
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.explorer import callbacks
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.downloads import download
from ladder_sim.explorer.layout import layout
from ladder_sim.explorer.queries import Queries

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}{%config%}{%scripts%}{%renderer%}</body>
</html>"""
# a config.json as a data URL fits twice
MAX_REQUEST_BYTES = 4_000_000
# seconds after which a silent connection is closed; a page that moves on opens another
IDLE_S = 30.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# new objects that may pile up before the garbage collector looks through them
_COLLECT_AFTER = 50_000
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


def make_app(allowlist: Allowlist, start: str = "", *, hosts: Iterable[str] | None = LOOPBACK) -> Dash:
    """Return the Dash app of the explorer.

    Parameters
    ----------
    allowlist
        What a browser may name.
    start
        Query of a page that is opened without one.
    hosts
        Host names that requests may carry, so that another site's name that resolves to this machine gets nothing;
        None: any.
    """
    app = Dash(
        "ladder_sim.explorer",
        title="ladder-sim explorer",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        index_string=_PAGE,
    )
    queries = Queries(allowlist)
    app.layout = lambda: layout(allowlist, start)
    callbacks.register_script(app)
    callbacks.register(app, queries)
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BYTES
    _guard(server, None if hosts is None else frozenset(hosts))
    _secure(server, app)
    server.add_url_rule("/download/<name>", "download", _downloader(queries))
    return app


def serving(app: Dash, host: str, port: int) -> BaseWSGIServer:
    """Return a server bound to a port.

    ``serve_forever`` answers, each request on a thread of its own.
    Raises UsageError if the port is taken, or this machine does not have the address.
    """
    try:
        return make_server(host, port, app.server, threaded=True, request_handler=_RequestHandler)
    except (OSError, SystemExit) as error:
        raise UsageError(f"cannot listen on {host}:{port}", hint="choose another --port; 0 picks a free one") from error


def serve(server: BaseWSGIServer) -> None:
    """Answer requests until interrupted."""
    # everything loaded by now stays: looking through it again and again took a quarter of the time
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    try:
        server.serve_forever()
    finally:
        # what they compute is for nobody now
        for process in active_children():
            process.kill()


class _RequestHandler(WSGIRequestHandler):
    """Keeps connections open while they are used, logs no requests, and does not say what the server is made of."""

    protocol_version = "HTTP/1.1"

    # of the socket: a client that neither sends nor takes anything for so long is gone
    timeout = IDLE_S

    def log_error(self, format: str, *args: object) -> None:
        """Log what went wrong, which silence did not."""
        if not any(isinstance(each, TimeoutError) for each in args):
            super().log_error(format, *args)

    def version_string(self) -> str:
        """Return the Server header."""
        return "ladder-sim"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def _guard(server: Flask, hosts: frozenset[str] | None) -> None:
    @server.before_request
    def _known_host() -> Response | None:
        name = urlsplit(f"//{request.host}").hostname
        if hosts is not None and name not in hosts:
            return Response("unknown host\n", status=421, content_type="text/plain")
        return None

    @server.errorhandler(Exception)
    def _malformed(error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return Response(f"{error.name}\n", status=error.code or 400, content_type="text/plain")
        # callbacks answer for themselves: what is left is a request that no page sends
        return Response("malformed request\n", status=400, content_type="text/plain")


def _secure(server: Flask, app: Dash) -> None:
    policy: list[str] = []

    @server.after_request
    def _headers(response: Response) -> Response:
        if not policy:
            scripts = " ".join(f"'{digest}'" if not digest.startswith("'") else digest for digest in app.csp_hashes())
            policy.append(
                f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
                "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src blob:; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
        response.headers.update(_HEADERS)
        response.headers.setdefault("Content-Security-Policy", policy[0])
        return response


def _downloader(queries: Queries) -> Callable[[str], Response]:
    def send(name: str) -> Response:
        try:
            file = download(queries, name, request.query_string.decode("ascii", "replace"))
        except LadderSimError as error:
            return Response(f"{error}\n", status=400, content_type="text/plain; charset=utf-8")
        response = Response(file.content, content_type=f"{file.content_type}; charset=utf-8")
        response.headers["Content-Disposition"] = f'attachment; filename="ladder-sim-{name}"'
        return response

    return send
