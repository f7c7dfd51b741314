"""Changefeeds as files, over REST and by the commands; what docs/deploy.md shows is carried out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from face_page_kit import page
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from page_examples import blocks, commands
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operations import Operations
from rowferry.face.cli.main import app

OWN = "/api/rowferry"


def declared(source: str, *rules: str, name: str = "one", **more: Any) -> dict[str, Any]:
    config = {"filter": {"rules": list(rules or ("shop.*",))}}
    feed = {"source": source, "sink": "blackhole:///?protocol=canal-json", "config": config}
    return {"owner": "team", "changefeeds": {name: feed | more}}


def applied(client: TestClient, *contents: dict[str, Any], **more: bool) -> list[dict[str, Any]]:
    answer = client.post(f"{OWN}/apply", json={"declarations": list(contents), **more})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["steps"]
    return found


def test_apply_and_export_by_rest(client: TestClient, source: str, operations: Operations) -> None:
    (step,) = applied(client, declared(source), dry_run=True)
    assert (step["action"], step["outcome"]) == ("create", "planned")
    assert step["tables"] == ["shop.items", "shop.orders"]
    assert operations.store.feeds() == ()
    applied(client, declared(source))
    (step,) = applied(client, declared(source, "shop.orders"))
    assert step["differences"] == [
        {"key": "config.filter.rules", "before": ["shop.*"], "after": ["shop.orders"]}
    ]
    (feed,) = operations.store.feeds()
    assert (feed.state, feed.spec.managed_by) == (FeedState.NORMAL, "team")
    exported = client.get(f"{OWN}/export").json()
    assert exported["declaration"] == declared(source, "shop.orders")
    assert (exported["hidden"], exported["left_out"]) == ([], [])
    (step,) = applied(client, exported["declaration"])
    assert step["action"] == "nothing"
    (step,) = applied(client, {"owner": "team", "changefeeds": {}}, prune=True)
    assert (step["action"], step["outcome"]) == ("remove", "done")
    assert operations.store.feeds() == ()


def test_what_is_wrong_is_told_by_rest(client: TestClient, source: str) -> None:
    typo = client.post(f"{OWN}/apply", json={"declarations": [{"owner": "a", "feeds": {}}]})
    assert typo.status_code == 400
    assert "declaration 1: unknown option 'feeds'" in typo.json()["error_msg"]
    other = client.post(f"{OWN}/apply", json={"declarations": [], "dryrun": True})
    assert other.status_code == 400
    secret = declared(source, sink="mysql://u:hidden-word@127.0.0.1:1/")
    (step,) = applied(client, secret)
    assert (step["outcome"], "hidden-word" in json.dumps(step)) == ("refused", False)
    assert client.get(f"{OWN}/export", params={"as": "a b"}).status_code == 400


def shell(tmp_path: Path, *words: str) -> Any:
    meta = f"sqlite:///{tmp_path}/meta.db"
    return CliRunner().invoke(app, [*words, "--meta", meta])


def test_the_commands_on_a_meta_database(
    source: str, operations: Operations, tmp_path: Path
) -> None:
    file = tmp_path / "feeds.yaml"
    file.write_text(yaml.safe_dump(declared(source)))
    dry = ("apply", "-f", str(file), "--dry-run", "--output", "table")
    done = shell(tmp_path, *dry, "--exit-code")
    assert done.exit_code == 1, done.output
    assert done.output.splitlines() == [
        "+ one  to create",
        f"    source: {source}",
        "    sink: blackhole:///?protocol=canal-json",
        '    config.filter.rules: ["shop.*"]',
        "    tables: shop.items, shop.orders",
        "1 to create, 0 to change, 0 to remove, 0 changefeeds as declared",
    ]
    assert operations.store.feeds() == ()
    done = shell(tmp_path, "apply", "-f", str(file), "--output", "table")
    assert (done.exit_code, done.output.splitlines()[-1]) == (
        0,
        "1 created, 0 changed, 0 removed, 0 changefeeds as declared",
    )
    done = shell(tmp_path, *dry, "--exit-code")
    assert (done.exit_code, done.output) == (
        0,
        "0 to create, 0 to change, 0 to remove, 1 changefeed as declared\n",
    )
    written = shell(tmp_path, "export")
    assert yaml.safe_load(written.output) == declared(source)
    as_json = shell(tmp_path, "export", "--type", "json", "--as", "others")
    assert json.loads(as_json.output) == {**declared(source), "owner": "others"}


def test_exit_codes_and_signs(source: str, operations: Operations, tmp_path: Path) -> None:
    file = tmp_path / "feeds.json"
    file.write_text(json.dumps(declared(source)))
    assert shell(tmp_path, "apply", "-f", str(file)).exit_code == 0
    file.write_text(json.dumps(declared(source, "shop.orders", paused=True)))
    changed = shell(tmp_path, "apply", "-f", str(file), "--output", "table")
    assert changed.output.splitlines() == [
        "~ one  changed",
        '    config.filter.rules: ["shop.*"] -> ["shop.orders"]',
        "    paused: false -> true",
        "0 created, 1 changed, 0 removed, 0 changefeeds as declared",
    ]
    file.write_text(json.dumps({"owner": "team", "changefeeds": {}}))
    left = shell(tmp_path, "apply", "-f", str(file), "--output", "table")
    assert left.output.splitlines()[0] == (
        "! one  not declared by team any more; --prune removes it"
    )
    assert [f.id for f in operations.store.feeds()] == ["one"]
    file.write_text(json.dumps(declared(source, name="two", config={"filtr": {}})))
    refused = shell(tmp_path, "apply", "-f", str(file), "--prune", "--output", "table")
    assert refused.exit_code == 2
    assert "did you mean 'filter'?" in refused.output
    assert refused.output.splitlines()[-1].startswith("refused, nothing was done: ")
    assert [f.id for f in operations.store.feeds()] == ["one"]
    pruned = shell(tmp_path, "apply", "-f", "-", "--prune", "--exit-code")
    assert type(pruned.exception).__name__ == "BadOption"


def test_the_examples_of_the_page(
    source: str, operations: Operations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks("deploy.md", page("deploy.md", source, tmp_path))
    (file,) = [b.text for b in found if b.text.startswith("owner:")]
    Path("feeds.yaml").write_text(file)
    (block,) = [b for b in found if "rowferry apply" in b.text]
    outputs = [shell(tmp_path, *words[1:]) for words in commands(block)]
    assert [done.exit_code for done in outputs] == [0, 0, 0], outputs
    assert yaml.safe_load(outputs[2].output) == yaml.safe_load(file)
    shown = next(b.text for b in found if b.text.startswith("~ orders"))
    wanted = shown.replace(f"{tmp_path}/", "/data/").splitlines()
    real = shell(tmp_path, "apply", "-f", "feeds.yaml", "--dry-run", "--output", "table")
    assert real.output.splitlines()[-1].endswith("2 changefeeds as declared")
    operations.remove("items")
    again = shell(tmp_path, "apply", "-f", "feeds.yaml", "--dry-run", "--output", "table")
    text = again.output.replace(f"{tmp_path}/", "/data/").splitlines()
    assert text[:-1] == wanted[2:8]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("apply", "-f", "-", "-f", "x.yaml"), "standard input cannot be mixed"),
        (("export", "--type", "toml"), "allowed: json | yaml"),
    ],
)
def test_wrong_words(words: tuple[str, ...], error: str, tmp_path: Path) -> None:
    done = shell(tmp_path, *words)
    assert error in str(done.exception)
