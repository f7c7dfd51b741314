"""`rowferry changefeed …` and its neighbours: requests, texts, JSON forms, exit codes."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cli_kit import FakeServer, Run

from rowferry.face.cli.remote.changefeed import _WATCH_EVERY_S

V2 = "/api/v2"
OURS = "/api/rowferry"
SECRET = "hu" + "sh"
DETAIL = {
    "upstream_id": 0,
    "id": "x",
    "keyspace": "default",
    "source_uri": "mysql://h",
    "sink_uri": "blackhole://",
    "create_time": "t0",
    "start_ts": 1,
    "target_ts": 0,
    "admin_job_type": 0,
    "config": {"case_sensitive": True},
    "state": "stopped",
    "error": None,
    "creator_version": "v",
    "resolved_ts": 9 << 18,
    "checkpoint_ts": 5 << 18,
    "checkpoint_time": "t1",
    "task_status": None,
    "gid": {"low": 1, "high": 2},
    "maintainer_addr": "",
}
PAGE = {
    "id": "x",
    "state": "normal",
    "source_uri": "mysql://h",
    "sink_uri": "kafka://k:9092/t?protocol=canal-json",
    "checkpoint_ts": 5 << 18,
    "lag_ms": 1500,
    "rows_per_s": 1234.5,
    "bytes_per_s": 2e6,
    "owner": "h:8300",
    "tables": 3,
    "phase": "log",
    "snapshot": None,
    "snapshots": [],
    "error": None,
    "config": {"sink": {"kafka-config": {"sasl-password": "***"}, "protocol": "csv"}},
    "target_ts": None,
}
ITEM = {
    "upstream_id": 0,
    "id": "x",
    "keyspace": "default",
    "state": "failed",
    "checkpoint_tso": 5 << 18,
    "checkpoint_time": "t1",
    "error": {"time": "t", "addr": "a", "code": "CDC:ErrX", "message": "m"},
}
CHECKED = {
    "ok": True,
    "error": None,
    "tables": ["a.t", "a.u"],
    "ineligible": ["a.n"],
    "outputs": {"a.t": "topic t"},
    "rules": ["a.* captures"],
    "notices": ["mind this"],
}


def test_create_sends_everything_and_prints_what_ticdc_prints(
    run: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.txt").write_text("a.*\n!a.b\n")
    (tmp_path / "f.toml").write_text('[filter]\nrules = ["@rules.txt"]\n')
    server.answers = {
        f"POST {OURS}/changefeeds/check": CHECKED,
        f"POST {V2}/changefeeds": DETAIL,
    }
    words = ("--source", "mysql://h", "--sink-uri", "file://out?protocol=avro", "-c", "x")
    more = ("--start-ts", "5", "--target-ts", "9", "--schema-registry", "http://r:1")
    idle = ("--no-confirm", "--tz", "UTC", "--sort-engine=unified", "--disable-gc-check")
    ended = run("changefeed", "create", *words, *more, "--config", "f.toml", *idle)
    body = {
        "changefeed_id": "x",
        "source_uri": "mysql://h",
        "sink_uri": f"file://{tmp_path}/out?protocol=avro&schema-registry=http://r:1",
        "start_ts": 5,
        "target_ts": 9,
        "replica_config": {"filter": {"rules": ["a.*", "!a.b"]}, "ignore-ineligible-table": True},
    }
    assert server.asked == [
        (f"POST {OURS}/changefeeds/check", body),
        (f"POST {V2}/changefeeds", body),
    ]
    info = json.dumps(DETAIL, separators=(",", ":"))
    assert ended.out == (
        f"Create changefeed successfully!\nID: x\nInfo: {info}\n"
        "IneligibleTablesCount: 1\nEligibleTablesCount: 2\nAllTablesCount: 3\n"
    )
    assert (ended.code, ended.err) == (0, "note: mind this\n")


def test_a_dry_run_stores_nothing(run: Run, server: FakeServer) -> None:
    server.answers = {f"POST {OURS}/changefeeds/check": CHECKED}
    words = ("changefeed", "create", "--sink-uri", "blackhole://", "--dry-run", "--output")
    assert json.loads(run(*words, "json").out) == CHECKED
    assert run(*words, "table").out == (
        "what\tname\tdetails\ncaptured\ta.t\ttopic t\ncaptured\ta.u\t\n"
        "left out\ta.n\tit has no usable key\nrule\t\ta.* captures\n"
    )
    assert len(server.asked) == 2


def test_what_the_check_refuses_is_never_created(run: Run, server: FakeServer) -> None:
    error = {"code": "RF-1004", "message": "the sink URI has no scheme"}
    server.answers = {f"POST {OURS}/changefeeds/check": {**CHECKED, "ok": False, "error": error}}
    ended = run("changefeed", "create", "--sink-uri", "kafka://k/t")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "[RF-1004] the sink URI has no scheme\n"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("create",), "--sink-uri is needed"),
        (("create", "--sink-uri", "nowhere"), "has no scheme"),
        (("create", "--sink-uri", "blackhole://", "--config", "no.toml"), "no.toml: cannot be"),
        (("create", "--sink-uri", "blackhole://", "--start-ts", "0"), "start-ts"),
        (("list", "--output", "xml"), "--output 'xml': allowed: table | json"),
        (("list", "--server", "ftp://h"), "--server: write http://HOST:PORT"),
        (("list", "--server", "h:99999"), "--server: write http://HOST:PORT"),
        (("list", "--server", "http://[h"), "--server: write http://HOST:PORT"),
        (("list", "--server", "http://a b:1"), "--server: write http://HOST:PORT"),
        (("list", "--token", "a", "--user", "b"), "--token and --user"),
        (("list", "--token", "a\nb"), "characters that no token has"),
        (("list", "--pd", "http://pd"), "there is no PD here"),
        (("list", "-k", "other"), "there is only the keyspace default"),
        (("list", "--server", "https://h", "--ca", "no.pem"), "cannot be read"),
        (("query",), "changefeed-id"),
        (("reset", "-c", "x"), "give one of --snapshot, --ts and --position"),
        (("reset", "-c", "x", "--snapshot", "--ts", "5"), "give one of"),
        (("tables", "-c", "x", "--add", "a.b", "--drop", "a.b"), "one at a time"),
        (("update", "-c", "x", "--start-ts", "5"), "start_ts can not be updated"),
        (("update", "-c", "x", "--schema-registry", "http://r"), "needs --sink-uri"),
        (("resume", "-c", "x", "--overwrite-checkpoint-ts", "soon"), "allowed: now, or"),
        (("resume", "-c", "x", "--overwrite-checkpoint-ts", "0"), "allowed: now, or"),
    ],
)
def test_bad_input_ends_with_2_and_asks_nothing(
    run: Run, server: FakeServer, words: tuple[str, ...], told: str
) -> None:
    ended = run("changefeed", *words)
    assert (ended.code, server.asked) == (2, [])
    assert told in " ".join(ended.err.split())


def test_list_in_ticdcs_form_and_as_a_table(run: Run, server: FakeServer) -> None:
    finished = {**PAGE, "id": "z", "state": "finished", "phase": None, "lag_ms": None}
    part = {"done": 1, "all": 4, "unit": "parts", "tables_done": 0, "tables": 1, "left_ms": None}
    reading = {**PAGE, "phase": "snapshot", "snapshot": part}
    broken = {**PAGE, "id": "y", "error": {"code": "RF-4001", "message": "gone", "cure": "wait"}}
    server.answers = {
        f"GET {V2}/changefeeds": {"total": 1, "items": [ITEM]},
        f"GET {V2}/changefeeds?state=all": {"total": 0, "items": None},
        f"GET {OURS}/overview": {"changefeeds": [reading, broken, finished]},
    }
    summary = {"state": "failed", "tso": 5 << 18, "checkpoint": "t1", "error": ITEM["error"]}
    form = [{"id": "x", "keyspace": "default", "summary": summary}]
    assert json.loads(run("changefeed", "list").out) == form
    assert json.loads(run("cli", "changefeed", "list", "-a", "--output", "json").out) == []
    table = run("changefeed", "list", "--output", "table").out.splitlines()
    assert [line.split("\t")[0] for line in table] == ["id", "x", "y"]
    assert table[1].split("\t")[1:] == [
        *("normal", "snapshot 25%", "1.5 s", "1,234", "3", "h:8300"),
        *("mysql://h", "kafka://k:9092/t", ""),
    ]
    assert table[2].endswith("[RF-4001] gone")
    every = run("changefeed", "list", "--output", "table", "--all").out.splitlines()
    assert every[3].startswith("z\tfinished\t\t\t")


def test_query_in_ticdcs_forms(run: Run, server: FakeServer) -> None:
    server.answers = {
        f"GET {V2}/changefeeds/x": DETAIL,
        "GET /api/rowferry/changefeeds/x": {"position": {"file": "b.1"}, "owner": "a:8300"},
        f"GET {V2}/changefeeds?state=all": {"total": 1, "items": [ITEM]},
        f"GET {V2}/changefeeds/y": (404, {"error_msg": "[RF-2007] no y", "error_code": "C"}),
    }
    found = json.loads(run("changefeed", "query", "-c", "x").out)
    assert (
        list(found)
        == (
            "upstream_id id keyspace sink_uri source_uri config create_time start_ts resolved_ts "
            "target_ts checkpoint_tso checkpoint_time state creator_version position kept_ms owner "
            "table_counts"
        ).split()
    )
    assert found["checkpoint_tso"] == DETAIL["checkpoint_ts"]
    assert json.loads(run("changefeed", "query", "-s", "--changefeed-id=x").out) == ITEM
    assert (
        'config\t{"case_sensitive":true}'
        in run("changefeed", "query", "-c", "x", "--output", "table").out
    )
    for words in ((), ("-s",)):
        ended = run("changefeed", "query", "-c", "y", *words)
        assert (ended.code, ended.err) == (1, "[RF-2007] no y\n")


def test_pause_resume_and_remove(run: Run, server: FakeServer) -> None:
    server.answers = {
        f"POST {V2}/changefeeds/x/pause": {},
        f"POST {V2}/changefeeds/x/resume": {},
        f"POST {V2}/tso": {"timestamp": 7, "logic_time": 2},
        f"GET {V2}/changefeeds?state=all": {"total": 1, "items": [ITEM]},
        f"GET {V2}/changefeeds/x": DETAIL,
        f"DELETE {V2}/changefeeds/x": {},
    }
    assert run("changefeed", "pause", "-c", "x").code == 0
    told = run("changefeed", "resume", "-c", "x").out
    assert told == "Resume changefeed successfully! \nID: x\n"
    run("changefeed", "resume", "-c", "x", "--overwrite-checkpoint-ts", "now", "--no-confirm")
    run("changefeed", "resume", "-c", "x", "--overwrite-checkpoint-ts", "44", "--no-confirm")
    resumed = [body for what, body in server.asked if what.endswith("/resume")]
    assert resumed == [
        {},
        {"overwrite_checkpoint_ts": (7 << 18) + 2},
        {"overwrite_checkpoint_ts": 44},
    ]
    assert run("tso", "query").out == f"{(7 << 18) + 2}\n"
    assert run("changefeed", "remove", "-c", "x").out == (
        f"Changefeed remove successfully.\nID: x\nCheckpointTs: {5 << 18}\nSinkURI: blackhole://\n"
    )
    assert run("changefeed", "remove", "-c", "y").out == "Changefeed not found.\nID: y\n"
    assert [what for what, _ in server.asked if what.startswith("DELETE")] == [
        f"DELETE {V2}/changefeeds/x"
    ]


def test_reset_and_tables(run: Run, server: FakeServer) -> None:
    page = {**PAGE, "config": {"filter": {"rules": ["a.*"]}}, "captured": ["a.t"]}
    server.answers = {
        f"POST {OURS}/changefeeds/x/reset": page,
        f"POST {OURS}/changefeeds/x/tables": page,
        f"GET {OURS}/changefeeds/x": PAGE | {"captured": []},
    }
    words = ("changefeed", "reset", "-c", "x", "--no-confirm")
    assert run(*words, "--snapshot").out == "Reset changefeed successfully! \nID: x\n"
    run(*words, "--ts", "5")
    run(*words, "--position", "f:4")
    words = ("changefeed", "tables", "-c", "x")
    found = run(*words, "--add", "a.t", "--add", "b.*").out
    assert json.loads(found) == {"rules": ["a.*"], "captured": ["a.t"]}
    table = run(*words, "--drop", "b.*", "--output", "table").out
    assert table == "what\tname\nrule\ta.*\ncaptured\ta.t\n"
    assert json.loads(run(*words).out) == {"rules": ["*.*"], "captured": []}
    assert [body for _, body in server.asked] == [
        {"snapshot": True, "commit_ts": None, "position": None},
        {"snapshot": False, "commit_ts": 5, "position": None},
        {"snapshot": False, "commit_ts": None, "position": "f:4"},
        {"add": ["a.t", "b.*"]},
        {"drop": ["b.*"]},
        None,
    ]


def test_an_overwrite_asks_first(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = {f"POST {V2}/changefeeds/x/resume": {}}
    words = ("changefeed", "resume", "-c", "x", "--overwrite-checkpoint-ts", "44")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run(*words).out.endswith("Nothing was changed.\n")
    assert server.asked == []
    monkeypatch.setattr("sys.stdin", io.StringIO("Y\n"))
    assert "Resume changefeed successfully!" in run(*words).out


def test_update_shows_the_difference_and_asks(
    run: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = {
        f"GET {OURS}/changefeeds/x": PAGE,
        f"PUT {V2}/changefeeds/x": DETAIL,
    }
    file = tmp_path / "f.toml"
    file.write_text(
        f'case-sensitive = true\n[sink.kafka-config]\nsasl-password = "{SECRET}"\n'
        f'[sink]\nschema-registry = "http://u:{SECRET}@r"\n'
    )
    words = ("changefeed", "update", "-c", "x", "--config", str(file), "--target-ts", "9")
    sink = ("--sink-uri", f"kafka://k:9092/t?protocol=avro&sasl-password={SECRET}")
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    refused = run(*words, *sink)
    assert refused.out.startswith(
        "Diff of changefeed config:\n"
        "sink_uri: kafka://k:9092/t?protocol=canal-json -> "
        "kafka://k:9092/t?protocol=avro&sasl-password=***\n"
        "target_ts: None -> 9\n"
        "case-sensitive: (default) -> true\n"
        'sink.kafka-config.sasl-password: "***" -> "***"\n'
        'sink.protocol: "csv" -> (default)\n'
        'sink.schema-registry: (default) -> "***"\n'
        "Could you agree to apply changes above to changefeed [Y/N]"
    )
    assert not [what for what, _ in server.asked if what.startswith("PUT")]
    agreed = run(*words, *sink, "--no-confirm")
    assert agreed.out.count("Update changefeed config successfully! \nID: x\nInfo: {") == 1
    assert SECRET not in refused.out + agreed.out + refused.err + agreed.err
    (body,) = [body for what, body in server.asked if what.startswith("PUT")]
    assert body["replica_config"]["sink"]["kafka-config"] == {"sasl-password": SECRET}
    assert (body["target_ts"], body["sink_uri"]) == (9, sink[1])
    same = run("changefeed", "update", "-c", "x", "--source", "mysql://h")
    assert same.out == "changefeed config is the same with the old one, do nothing\n"


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ("mysql://copy:***@h:3306/", "mysql://copy:{new}@h:3306/"),
        ("kafka://k:9092/t?sasl-password=***", "kafka://k:9092/t?sasl-password={new}"),
        ("http://h/?key=***", "http://h/?key={new}"),
    ],
)
def test_update_sends_a_password_that_nobody_can_compare(
    run: Run, server: FakeServer, stored: str, given: str
) -> None:
    server.answers = {
        f"GET {OURS}/changefeeds/x": {**PAGE, "sink_uri": stored},
        f"PUT {V2}/changefeeds/x": DETAIL,
    }
    update = ("changefeed", "update", "-c", "x", "--no-confirm", "--sink-uri")
    told = run(*update, given.format(new=SECRET))
    assert told.out.startswith(f"Diff of changefeed config:\nsink_uri: {stored} -> {stored}\n")
    assert SECRET not in told.out + told.err
    assert server.asked[-1][1] == {"sink_uri": given.format(new=SECRET)}
    same = run(*update, stored)
    assert same.out == "changefeed config is the same with the old one, do nothing\n"


def test_statistics_captures_and_processors(run: Run, server: FakeServer) -> None:
    server.answers = {
        f"GET {V2}/changefeeds/x/status": {"resolved_ts": 9 << 18, "checkpoint_ts": 5 << 18},
        f"POST {V2}/tso": {"timestamp": 12, "logic_time": 0},
        f"GET {V2}/captures": {
            "total": 1,
            "items": [{"id": "i", "is_owner": True, "address": "h:1", "cluster_id": "default"}],
        },
        f"GET {V2}/processors": {
            "total": 1,
            "items": [{"keyspace": "default", "changefeed_id": "x", "capture_id": "i"}],
        },
        f"GET {V2}/processors/x/i": {"table_ids": [4, 5]},
    }
    told = run("changefeed", "statistics", "-c", "x", "-I", "0.1", "--times", "2").out
    assert told == 2 * '{\n  "sink_gap": "4ms",\n  "replication_gap": "7ms"\n}\n'
    assert json.loads(run("capture", "list").out) == [
        {"id": "i", "is-owner": True, "address": "h:1", "cluster-id": "default"}
    ]
    assert run("cli", "capture", "list", "--output", "table").out == (
        "id\tis-owner\taddress\tcluster-id\ni\tTrue\th:1\tdefault\n"
    )
    assert json.loads(run("processor", "list").out)[0]["capture_id"] == "i"
    assert "\tx\ti" in run("processor", "list", "--output", "table").out
    words = ("processor", "query", "-c", "x", "-p", "i")
    assert json.loads(run(*words).out) == {"table_ids": [4, 5]}
    assert run(*words, "--output", "table").out == "table_id\n4\n5\n"


def pages(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**PAGE, **change} for change in changes]


@pytest.mark.parametrize(
    ("words", "requests"),
    [(("create", "--sink-uri", "blackhole://"), 5), (("resume", "-c", "x"), 4)],
)
def test_create_and_resume_can_wait_until_it_has_caught_up(
    run: Run,
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    requests: int,
) -> None:
    monkeypatch.setattr("rowferry.face.cli.remote.changefeed._WATCH_EVERY_S", _WATCH_EVERY_S / 1000)
    reading = [{"table": "a.t", "done": 3, "all": 4}]
    whole = {"done": 3, "all": 4, "unit": "rows", "tables_done": 0, "tables": 1, "left_ms": 7000}
    server.answers = {
        f"POST {OURS}/changefeeds/check": {**CHECKED, "notices": []},
        f"POST {V2}/changefeeds": DETAIL,
        f"POST {V2}/changefeeds/x/resume": {},
        f"GET {OURS}/changefeeds/x": pages(
            {"lag_ms": None, "phase": "snapshot", "snapshots": reading, "snapshot": whole},
            {"lag_ms": 60_000},
            {"lag_ms": 900},
        ),
    }
    ended = run("changefeed", *words, "--wait")
    assert ended.code == 0
    first, *_, last = ended.err.splitlines()
    bar = "snapshot a.t 75% (3 of about 4 rows, about 7 s left)"
    assert first == f"x  normal (snapshot)  1,234 rows/s  2.0 MB/s  {bar}"
    assert last == "x  normal (log)  1,234 rows/s  2.0 MB/s  catch-up 100% (lag 0.9 s)"
    assert len(server.asked) == requests


def test_watching_ends_with_the_changefeeds_error(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowferry.face.cli.remote.changefeed._WATCH_EVERY_S", _WATCH_EVERY_S / 1000)
    error = {"code": "RF-4002", "message": "row refused", "cure": "", "at": 1}
    server.answers = {
        f"GET {OURS}/changefeeds/x": pages({"lag_ms": 10}, {"state": "failed", "error": error})
    }
    ended = run("changefeed", "query", "-c", "x", "--watch")
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "[RF-4002] row refused"


# --- access --------------------------------------------------------------------------------------


def test_logins_are_sent_from_flags_or_the_environment(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = {f"GET {V2}/captures": {"total": 0, "items": []}}
    words = ("capture", "list")
    run(*words)
    run(*words, "--token", "one")
    run(*words, "--user", "u", "--password", "p")
    monkeypatch.setenv("ROWFERRY_TOKEN", "two")
    run(*words)
    run(*words, "--user", "u", "--password", "p")
    sent = [headers.get("authorization") for headers in server.headers]
    assert sent == [None, "Bearer one", "Basic dTpw", "Bearer two", "Basic dTpw"]


@pytest.mark.parametrize("password", ["p\u00e4ssword", "\u043f\u0430\u0440\u043e\u043b\u044c"])
def test_a_login_is_sent_as_servers_read_it(run: Run, server: FakeServer, password: str) -> None:
    server.answers = {f"GET {V2}/captures": {"total": 0, "items": []}}
    assert run("capture", "list", "--user", "ü", "--password", password).code == 0
    login = server.headers[0]["authorization"].removeprefix("Basic ")
    assert b64decode(login).decode() == f"ü:{password}"


def test_flags_may_stand_before_the_subcommand(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWFERRY_SERVER", "http://127.0.0.1:9")
    server.answers = {f"GET {V2}/captures": {"total": 0, "items": []}}
    address = server.url.removeprefix("http://")
    assert run("cli", "--server", address, "capture", "list").code == 0
    assert run("cli", "--server", "127.0.0.1:9", "capture", "list", "--server", address).code == 0


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        (
            (401, {"error_msg": "[RF-1023] no"}),
            2,
            "[RF-1023] {} refuses: give --token,",
        ),
        ((409, {"error_msg": "[RF-2006] it runs"}), 1, "[RF-2006] it runs"),
        ((400, {"error_msg": "[RF-1004] bad"}), 2, "[RF-1004] bad"),
        ((500, {"error_msg": "boom"}), 1, "[RF-8000] {} answered 500: boom"),
        ((502, b"<html>\nproxy"), 1, "[RF-8000] {} answered 502: '<html> proxy'"),
        ((200, b"<html>"), 1, "[RF-8000] {} did not answer with JSON: '<html>'"),
        ((302, b""), 1, "[RF-8000] {} answered 302: no words"),
    ],
)
def test_every_answer_that_is_none_is_one_line(
    run: Run, server: FakeServer, answer: Any, code: int, told: str
) -> None:
    server.answers = {f"POST {V2}/changefeeds/x/pause": answer}
    ended = run("changefeed", "pause", "-c", "x")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith(told.format(server.url))
    assert ended.err.count("\n") == 1


def test_a_server_that_is_not_there_is_named(run: Run) -> None:
    ended = run("changefeed", "list", "--server", "http://127.0.0.1:9")
    assert ended.code == 1
    assert ended.err == (
        "[RF-8001] no server answers at http://127.0.0.1:9: start one with `rowferry server`, "
        "or name another with --server\n"
    )
