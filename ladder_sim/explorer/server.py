"""The explorer on a port: answers, views and files, each a function of a query; and what is kept from strangers.

A request takes a thread. What takes longer than an answer is computed in two pools of one process each, one for views
and one for simulated loads, so that answers do not wait for them.
"""

import gc
import json
import socket
import threading
import traceback
from collections import OrderedDict
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ladder_sim.errors import LadderSimError, UnknownNameError, UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.controls import sheet
from ladder_sim.explorer.export import folder, plotly, zipped
from ladder_sim.explorer.page import asset, banner, document, reply
from ladder_sim.explorer.panels import Panel
from ladder_sim.explorer.state import MAX_BYTES, read_config
from ladder_sim.explorer.views import VIEWS
from ladder_sim.kernels import Phase
from ladder_sim.sweeps.executors import settle
from ladder_sim.traces import perfetto
from ladder_sim.traces.predicted import predicted_run

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# panels that are kept
_KEPT = 128
# seconds after which a silent connection is closed; a page that moves on opens another
IDLE_S = 30.0
# new objects that may pile up before the garbage collector looks through them
_COLLECT_AFTER = 50_000
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "json": "application/json",
    "csv": "text/csv",
    "zip": "application/zip",
}
_BUG = LadderSimError("the simulator failed", hint="a bug: the terminal shows where")


class Response(NamedTuple):
    """What a request gets."""

    content: bytes
    kind: str = "json"
    """Ending of a file of this type."""
    status: int = 200
    name: str = ""
    """Name under which a browser saves the content; empty: the browser shows it."""


class Site:
    """The pages of one explorer; `start` is the query of a page that is opened without one."""

    def __init__(self, allowlist: Allowlist, start: str = "") -> None:
        self.queries = Queries(allowlist)
        self._start = start
        self._lock = threading.Lock()
        self._pools: dict[str, ProcessPoolExecutor] = {}
        self._panels: OrderedDict[tuple[str, str], Future[Panel]] = OrderedDict()

    def get(self, path: str, query: str) -> Response:
        """Return what a path gives for a query."""
        place, _, name = path.strip("/").partition("/")
        try:
            if not place:
                return Response(self._page(query).encode(), "html")
            if place in ("page.css", "page.js"):
                return Response(asset(place).encode(), place.rpartition(".")[2])
            if place == "plotly.min.js":
                return Response(plotly(), "js")
            if place == "answer":
                return _json(reply(self.queries, query).plain)
            if place == "view" and name in VIEWS:
                panel = self.panel(name, query)
                return _json({"html": panel.html, "figures": panel.figures, "command": panel.command})
            if place == "download":
                return self._download(name, query)
        except LadderSimError as error:
            if place == "view":
                return _json({"html": banner(error), "figures": {}, "command": ""})
            return Response(f"{error}\n".encode(), "txt", 400)
        except Exception:
            traceback.print_exc()
            return _json({"html": banner(_BUG), "parts": {"error": banner(_BUG)}, "figures": {}, "command": ""})
        return Response(b"not found\n", "txt", 404)

    def post(self, path: str, query: str, body: bytes) -> Response:
        """Read a model's config.json; the query is its file's name."""
        if path != "/model":
            return Response(b"not found\n", "txt", 404)
        try:
            try:
                text = body.decode("utf-8-sig")
            except UnicodeDecodeError:
                raise UsageError("the file is not text", hint="give the model's config.json, not its weights") from None
            model, shape = read_config(query, text)
        except LadderSimError as error:
            return _json({"error": banner(error)})
        return _json({"model": model, "shape": shape})

    def panel(self, name: str, query: str) -> Panel:
        """Return the panel of a view; raise LadderSimError if there is no answer."""
        question = self.queries.question(query)
        view = VIEWS[name]
        if not view.pool:
            return view.panel(self.queries, question)
        try:
            return self._computed(name, question, view.pool).result()
        except BrokenProcessPool:
            with self._lock:
                self._panels.pop((name, question), None)
                self._pools.pop(view.pool, None)
            raise LadderSimError(
                "the process that computes this was ended, possibly out of memory", hint="reload to try again"
            ) from None

    def _computed(self, name: str, question: str, pool: str) -> Future[Panel]:
        """Return a panel that a process of a pool has computed, computes, or will; a question is computed once."""
        with self._lock:
            if (name, question) not in self._panels:
                if pool not in self._pools:
                    # spawned: forking a process that has threads is not safe
                    how = get_context("spawn"), _begin, (self.queries.allowlist,)
                    self._pools[pool] = ProcessPoolExecutor(1, *how)
                self._panels[name, question] = self._pools[pool].submit(_panel, name, question)
                while len(self._panels) > _KEPT:
                    self._panels.popitem(last=False)
            return self._panels[name, question]

    def close(self) -> None:
        """End the processes: what they compute is for nobody now."""
        for pool in self._pools.values():
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)

    def _page(self, query: str) -> str:
        first = reply(self.queries, query or self._start)
        return document(first, sheet(self.queries.allowlist), scripts=("page.js",))

    def _download(self, name: str, query: str) -> Response:
        stem, _, form = name.partition(".")
        question = self.queries.question(query)
        if name in ("prediction.csv", "prediction.json"):
            answer = self.queries.predictions(question).report.document()
        elif name in ("decode.perfetto.json", "prefill.perfetto.json"):
            phase: Phase = "decode" if stem == "decode" else "prefill"
            return Response(_trace(self.queries, question, phase).encode(), "json", name=name)
        elif name == "page.zip":
            return Response(zipped(folder(self.queries, question)), "zip", name=name)
        elif stem in VIEWS and form in ("csv", "json") and (own := self.panel(stem, question).document):
            answer = own
        else:
            raise UnknownNameError("file", name[:60], ("prediction.csv", "prediction.json", "page.zip"))
        return Response((answer.to_csv() if form == "csv" else answer.to_json()).encode(), form, name=name)


def _json(content: Mapping[str, Any]) -> Response:
    return Response(json.dumps(content, separators=(",", ":")).encode())


def _trace(queries: Queries, question: str, phase: Phase) -> str:
    answer = queries.answer(question)
    how = answer.state.how(queries.allowlist)
    return perfetto.to_json(
        {name: predicted_run(answer.scenario.having(variant=name), phase, **how) for name in answer.predictions}
    )


_queries: Queries


def _begin(allowlist: Allowlist) -> None:
    """Keep in a process of a pool what every question needs."""
    global _queries
    settle()
    _queries = Queries(allowlist)


def _panel(name: str, question: str) -> Panel:
    """Compute a view in a process of a pool."""
    try:
        return VIEWS[name].panel(_queries, question)
    except LadderSimError as error:
        # the message and the hint: not all errors can be pickled
        raise LadderSimError(error.message, hint=error.hint) from None


class Server(ThreadingHTTPServer):
    """A site on a port of this machine."""

    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int, hosts: Collection[str] | None = LOOPBACK) -> None:
        self.site = site

        # what requests may call this machine, so that another site's name for it gets nothing; None: anything
        self.hosts = hosts
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)

    @property
    def port(self) -> int:
        """The port that is bound."""
        return int(self.server_address[1])


def bound(site: Site, host: str, port: int, hosts: Collection[str] | None = LOOPBACK) -> Server:
    """Return a server bound to a port; raise UsageError if it is taken, or this machine does not have the address."""
    try:
        return Server(site, host, port, hosts)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}", hint="choose another --port; 0 picks a free one") from error


def serve(server: Server) -> None:
    """Answer requests until interrupted."""
    # everything loaded by now stays: looking through it again and again took a quarter of the time
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    try:
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    finally:
        server.site.close()


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open while they are used, logs no requests, and does not say what the server is made of."""

    protocol_version = "HTTP/1.1"

    # of the socket: a client that neither sends nor takes anything for so long is gone
    timeout = IDLE_S

    # headers and content are one packet: two would wait for each other's acknowledgement
    wbufsize = -1
    server: Server

    def do_GET(self) -> None:
        """Answer with a page, an answer, a view or a file."""
        parts = urlsplit(self.path)
        if self._allowed():
            self._send(self.server.site.get(parts.path, parts.query))

    def do_POST(self) -> None:
        """Read an uploaded config.json."""
        parts = urlsplit(self.path)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > 2 * MAX_BYTES:
            self.close_connection = True
            self._send(Response(b"too large\n", "txt", 413))
        elif self._allowed():
            body = self.rfile.read(int(length))
            self._send(self.server.site.post(parts.path, parts.query, body))

    def _allowed(self) -> bool:
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            name = None
        if self.server.hosts is None or name in self.server.hosts:
            return True
        self.close_connection = True
        self._send(Response(b"unknown host\n", "txt", 421))
        return False

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{_TYPES.get(response.kind, 'text/plain')}; charset=utf-8")
        self.send_header("Content-Length", str(len(response.content)))
        # plotly.js and the page's own files change with the version alone
        self.send_header("Cache-Control", "max-age=86400" if self.path == "/plotly.min.js" else "no-store")
        if response.name:
            self.send_header("Content-Disposition", f'attachment; filename="ladder-sim-{response.name}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.content)
        self.wfile.flush()

    do_HEAD = do_GET

    def version_string(self) -> str:
        """Return the Server header."""
        return "ladder-sim"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: what is wrong with a request is in its answer."""
