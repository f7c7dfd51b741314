"""The page about REST: its examples run, its table of paths is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from face_page_kit import page, python_block
from fastapi.testclient import TestClient

from page_examples import blocks, table_rows
from rowferry.control.operator.operations import Operations
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.pages import STATIC


def test_the_requests_of_the_rest_page(
    client: TestClient, source: str, operations: Operations, tmp_path: Path
) -> None:
    text = page("rest.md", source, tmp_path)
    (shell,) = [b.text for b in blocks("rest.md", text) if b.text.startswith("curl")]
    commands = [shlex.split("curl " + one) for one in shell.split("curl ")[1:]]
    assert len(commands) == 7
    seen = []
    for words in commands:
        method = words[words.index("-X") + 1] if "-X" in words else "GET"
        body = words[words.index("-d") + 1] if "-d" in words else None
        (url,) = [w for w in words if w.startswith("http://")]
        answer = client.request(
            method, url.removeprefix("http://127.0.0.1:8300"), content=body and body.encode()
        )
        assert answer.status_code == 200, answer.text
        seen.append(answer.json())
    assert seen[1]["total"] == 1
    assert seen[5]["config"] == {"filter": {"rules": ["shop.orders"]}}
    assert operations.store.feeds() == ()


def test_the_program_of_the_rest_page(
    server: str,
    source: str,
    operations: Operations,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = python_block("rest.md", page("rest.md", source, tmp_path))
    exec(compile(code.replace("http://127.0.0.1:8300", server), "rest.md", "exec"), {})
    assert capsys.readouterr().out == "orders-copy normal None\n"
    assert [f.id for f in operations.store.feeds()] == ["orders-copy"]


def test_every_path_is_on_the_page_and_served() -> None:
    app = create_app(Operations(None), About("a:1", "1", 0.0, "x"))  # type: ignore[arg-type]
    served = {
        f"{verb.upper()} {path}"
        for path, verbs in app.openapi()["paths"].items()
        for verb, one in verbs.items()
        if one["summary"] != "Not supported"
    }
    rows = table_rows(page("rest.md"), "path|what it does")
    assert [row[0].strip("`") for row in rows] == sorted(
        served, key=[row[0].strip("`") for row in rows].index
    )
    assert len(rows) == len(served)


def test_the_list_of_paths_needs_nobody_else(client: TestClient) -> None:
    api = client.get("/openapi.json").json()
    assert api["info"]["title"] == "Rowferry" and "/api/v2/changefeeds" in api["paths"]
    for file in STATIC.iterdir():
        text = file.read_text()
        assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text) == [], file.name
        assert client.get(f"/docs/{file.name}").status_code == 200
    html = (STATIC / "docs.html").read_text()
    for reference in re.findall(r'(?:src|href)="([^"]+)"', html):
        assert client.get(reference).status_code == 200, reference
    assert "innerHTML" not in (STATIC / "docs.js").read_text()
    assert client.get("/docs/../app.py").status_code == 404
