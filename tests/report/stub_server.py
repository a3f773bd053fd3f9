"""A server of the OpenAI API whose replies a test states."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["serve"]


class _Replies(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(json.dumps({"object": "list", "data": [{"id": "served", "object": "model"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body.pop("model") == "served"
        self.server.bodies.append(body)
        self.server.headers.append(self.headers)
        replies = self.server.replies
        reply = replies[min(len(self.server.bodies), len(replies)) - 1]
        reply = reply(body) if callable(reply) else reply
        if reply is None:
            self.send_error(500)
        elif isinstance(reply, list):
            self.reply("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in reply) + "data: [DONE]\n\n", kind="text/event-stream")
        else:
            self.reply(json.dumps(reply))

    def reply(self, text, kind="application/json"):
        content = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def serve(*replies):
    """Serve the OpenAI API: the n-th request gets the n-th reply, the last one again and again.

    A reply is a document, the chunks of a stream, None for a 500, or a function of the body.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), _Replies) as server:
        server.replies, server.bodies, server.headers = replies, [], []
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
