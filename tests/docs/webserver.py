# SPDX-License-Identifier: GPL-2.0-only
"""A web server on loopback that shows a directory, as any web server would."""

import contextlib
import functools
import http.server
import threading


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing: pytest shows what fails."""


@contextlib.contextmanager
def show(directory):
    """Serve a directory until the context ends; give the address, which ends in a slash."""
    handler = functools.partial(Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
