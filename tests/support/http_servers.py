"""HTTP servers of tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer


@contextmanager
def answered_by(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Address of a server on this machine whose requests a handler answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, serving(server) as address:
        yield address


@contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    """Address of a server on this machine, which answers as long as the block runs."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
