"""Commands carried out in this process, and a server that answers as it is told."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import typer

from rowferry.face.cli import main as cli

Answer = tuple[int, Any]


@dataclass
class FakeServer:
    """Answers by `METHOD /path`; a list of answers is used up to its last one."""

    url: str
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def answer(self, what: str) -> Answer:
        found = self.answers.get(what)
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if found is None:
            return 404, {"error_msg": f"[RF-1000] nobody expects {what}", "error_code": "CDC:Err"}
        return found if isinstance(found, tuple) else (200, found)


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            what = f"{self.command} {self.path}"
            fake.asked.append((what, json.loads(body) if body else None))
            fake.headers.append({name.lower(): v for name, v in self.headers.items()})
            status, form = fake.answer(what)
            data = form if isinstance(form, bytes) else json.dumps(form).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeServer(f"http://127.0.0.1:{server.server_address[1]}")
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@dataclass
class Ended:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@cache
def _command() -> Callable[[], Any]:
    return typer.main.get_command(cli.app)  # once: it takes longer than most commands


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what carries out a command; errors become exit codes as in a shell."""

    def carry_out(*words: str) -> Ended:
        monkeypatch.setattr(cli, "app", _command())
        monkeypatch.setattr(sys, "argv", ["rowferry", *words])
        # However pytest was started, the command is started by its name.
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        shown = capsys.readouterr()
        assert isinstance(code, int)
        return Ended(code, shown.out, shown.err)

    _command()
    return carry_out
