"""Reference servers in this process, asked over ASGI; real processes are for the tests whose subject is the process."""

from __future__ import annotations

import asyncio
import ctypes
import json
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from specdec_reference.build import build_engine
from specdec_reference.cli import ServerSettings, Speculation
from specdec_reference.server import application


def one_blas_thread():
    """As __main__ has it; numpy may be loaded already, so its own library is told. Two threads that spin starve the rest of a small box."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split()[-1] for line in maps if "openblas" in line}
    for library in libraries:
        loaded = ctypes.CDLL(library)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(loaded, name):
                getattr(loaded, name)(1)


one_blas_thread()

K = 3
PROBABILISTIC = Speculation(method="draft_model", tokens=K, model="draft", probabilistic=True)
GREEDY = Speculation(method="draft_model", tokens=K, model="draft")
NGRAM = Speculation(method="ngram", tokens=K, n_min=2, n_max=4)


class Client:
    """Asks an application as a client would, several requests side by side when given several."""

    def __init__(self, app, loop):
        self.app = app
        self.loop = loop

    def ask(self, path, body, *, hang_up_after=None):
        return asyncio.run_coroutine_threadsafe(self._ask(path, body, hang_up_after), self.loop).result(60)

    def get(self, path):
        return asyncio.run_coroutine_threadsafe(self._ask(path, None, None, "GET"), self.loop).result(60)

    def complete(self, *bodies):
        futures = [asyncio.run_coroutine_threadsafe(self._ask("/v1/completions", body, None), self.loop) for body in bodies]
        answers = []
        for future in futures:
            status, raw = future.result(60)
            assert status == 200, raw
            answers.append(json.loads(raw))
        return answers[0] if len(bodies) == 1 else answers

    def chat(self, content, **body):
        status, raw = self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **body})
        assert status == 200, raw
        return json.loads(raw)

    def stream(self, path, body):
        status, raw = self.ask(path, {**body, "stream": True})
        assert status == 200, raw
        events = [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def refused(self, body, path="/v1/completions"):
        status, raw = self.ask(path, body)
        return status, json.loads(raw)["error"]

    def counters(self):
        lines = self.get("/metrics")[1].decode().splitlines()
        return {
            line.split("{")[0] + (line.split('position="')[1][0] if "position" in line else ""): float(line.split()[-1])
            for line in lines
            if not line.startswith("#")
        }

    async def _ask(self, path, body, hang_up_after, method="POST"):
        sent, status, gone = [], [], asyncio.Event()
        incoming = [
            {"type": "http.request", "body": json.dumps(body).encode() if not isinstance(body, bytes) else body, "more_body": False}
        ]
        if hang_up_after == 0:
            gone.set()

        async def receive():
            if incoming:
                return incoming.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                status.append(message["status"])
            else:
                sent.append(message["body"])
            if hang_up_after is not None and len(sent) >= hang_up_after:
                gone.set()

        path, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": query.encode(), "http_version": "1.1"}
        await self.app(scope, receive, send)
        return status[0], b"".join(sent)


@contextmanager
def served(speculation=None, **settings):
    engine = build_engine(ServerSettings(model="target", speculation=speculation, **settings))
    app, loop, ready = application(engine), asyncio.new_event_loop(), Future()

    async def live():
        leave = asyncio.Event()
        async with app.router.lifespan_context(app):
            ready.set_result(leave)
            await leave.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    leave = ready.result(30)
    client = Client(app, loop)
    client.engine = engine
    try:
        yield client
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(10)
        loop.close()
