"""Options of the MySQL sink: what they amount to, and what is refused."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from rowferry.errors import (
    BadInput,
    BadOption,
    BadUri,
    Fenced,
    OptionsConflict,
    RowRejected,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
    Verdict,
)
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.sink.contract import HasAdvice
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.options import MySqlSettings, read_settings
from rowferry.flow.sink.mysql.session import StatementRefused
from rowferry.flow.sink.mysql.sink import MySqlSink
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def spec_of(query: str = "", scheme: str = "mysql", **section: Any) -> ChangefeedSpec:
    uri = Uri.parse(f"{scheme}://{'root'}:{'p%40ss'}@db:3307/?{query}", "sink")
    config = {"sink": {"mysql-config": section}}
    return ChangefeedSpec("feed", Uri.parse("range://127.0.0.1:1", "source"), uri, config)


def settings(query: str = "", scheme: str = "mysql", **section: Any) -> MySqlSettings:
    return read_settings(spec_of(query, scheme, **section))


def test_tables_that_may_get_rows_twice_are_told() -> None:
    bare, kept = (parse_create(f"CREATE TABLE {t}", "s") for t in ("a (n int)", "b (n int KEY)"))
    told = assemble(spec_of()).sink
    assert isinstance(told, HasAdvice)
    (line,) = told.advice([bare, kept])
    assert line.startswith("s.a: without a key") and "exactly-once = true" in line
    exact = assemble(spec_of("exactly-once=true")).sink
    assert isinstance(exact, HasAdvice) and exact.advice([bare]) == []


def test_defaults() -> None:
    found = settings()
    assert (found.login.host, found.login.port, found.login.password) == ("db", 3307, "p@ss")
    assert (
        found.options.worker_count,
        found.options.max_txn_row,
        found.options.batch_dml_enable,
    ) == (0, 256, True)
    assert (found.shared.transaction_atomicity, found.options.meta_database, found.in_lanes) == (
        "none",
        "tidb_cdc",
        False,
    )
    assert "p@ss" not in repr(found)
    assert "p@ss" not in str(found.login)


@pytest.mark.parametrize(
    ("query", "scheme", "mode"),
    [
        ("", "mysql", "preferred"),
        ("", "mysql+ssl", "required"),
        ("", "tidb+ssl", "required"),
        ("ssl-ca=/ca.pem", "mysql", "verify-ca"),
        ("ssl-mode=verify-identity&ssl-ca=/ca.pem", "mysql+ssl", "verify-identity"),
        ("ssl-cert=/c&ssl-key=/k", "tidb", "required"),
        ("ssl-mode=preferred", "mysql", "preferred"),
    ],
)
def test_tls_follows_scheme_and_files(query: str, scheme: str, mode: str) -> None:
    assert settings(query, scheme).login.ssl_mode == mode


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("worker-count=5000", "options.worker_count", 1024),
        ("max-txn-row=9999", "options.max_txn_row", 2048),
        ("exactly-once=true", "in_lanes", True),
        ("transaction-atomicity=Table", "shared.transaction_atomicity", "table"),
        ("batch-dml-enable=false", "in_lanes", True),
        ("safe-mode=true", "shared.safe_mode", True),
        ('time-zone="%2B08:00"', "time_zone", "+08:00"),
    ],
)
def test_values(query: str, name: str, value: object) -> None:
    assert attrgetter(name)(settings(query)) == value


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("worker-count=0", "invalid worker-count 0, which must be greater than 0"),
        ("max-txn-row=-1", "invalid max-txn-row -1, which must be greater than 0"),
        ("transaction-atomicity=row", "none | table | global"),
        ("ssl-cert=/c", "ssl-cert and ssl-key belong together"),
        ("read-timeout=5", "needs its unit"),
    ],
)
def test_refused_values(query: str, words: str) -> None:
    with pytest.raises(BadInput, match=words.replace("|", r"\|")):
        settings(query)


def test_ddl_that_is_skipped_or_replaced() -> None:
    given = {"skip-ddl": ["12", 13], "replace-ddl": ["14  ALTER TABLE t ADD KEY (a)"]}
    assert settings(**given).replaced_ddl == {12: "", 13: "", 14: "ALTER TABLE t ADD KEY (a)"}
    with pytest.raises(OptionsConflict, match="commit-ts 12 is named twice"):
        settings(**{"skip-ddl": ["12"], "replace-ddl": ["12 SELECT 1"]})
    for key, wrong in (("skip-ddl", ["yesterday"]), ("replace-ddl", ["14"])):
        with pytest.raises(BadOption, match=key):
            settings(**{key: wrong})


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("mysql://root@/", "no MySQL sink"),
        ("mysql://h:1/", "no MySQL sink"),
        ("mysql://root@a:1,b:2/", "no MySQL sink"),
        ("mysql://root@h/shop", "names a database"),
    ],
)
def test_refused_addresses(uri: str, words: str) -> None:
    with pytest.raises(BadUri, match=words):
        assemble(ChangefeedSpec("f", Uri.parse("range://h:1", "source"), Uri.parse(uri, "sink")))
    with pytest.raises(OptionsConflict, match="contradicts"):
        settings("ssl-mode=disabled", "mysql+ssl")


def test_ticdc_settings_are_taken_or_told_to_be_idle() -> None:
    query = "max-multi-update-row=10&cache-prep-stmts=false&tidb-txn-mode=optimistic"
    built, notices = build_spec(
        "range://127.0.0.1:1",
        f"tidb://root@h:4000/?{query}&worker-count=3",
        tables=option_tables,
        sinks=sink_traits,
    )
    told = "\n".join(notices)
    for key in ("max-multi-update-row", "cache-prep-stmts", "tidb-txn-mode"):
        assert f"{key} has no effect" in told
    assert "worker-count" not in told
    assert isinstance(assemble(built).sink, MySqlSink)
    with pytest.raises(OptionsConflict, match="protocol"):
        build_spec(
            "range://127.0.0.1:1",
            "mysql://root@h/?protocol=csv",
            tables=option_tables,
            sinks=sink_traits,
        )


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (1045, SinkUnwritable, "check user, password"),
        (1142, SinkUnwritable, "grant the privilege"),
        (2026, SinkUnwritable, "ssl-ca"),
        (1290, SinkUnavailable, "read-only"),
        (1213, SinkUnavailable, "said so"),
        (1040, SinkUnavailable, "said so"),
        (1047, SinkUnavailable, "said so"),  # Galera: a node that is not ready
        (1927, SinkUnavailable, "said so"),  # MariaDB: somebody ended the session
        (3101, SinkUnavailable, "said so"),  # a group of servers takes a transaction back
        (4031, SinkUnavailable, "said so"),  # MySQL: the session was silent for too long
        (1146, TargetLost, "it was there before: restore it"),
        (1049, TargetLost, "reset --snapshot"),
        (1406, RowRejected, "then resume"),
    ],
)
def test_every_refusal_has_a_verdict(number: int, kind: type, words: str) -> None:
    found = StatementRefused(number, "said so", "root@h:1").as_error("table a.b")
    assert type(found) is kind
    assert words in str(found)
    assert str(found).startswith(f"[{found.code}] root@h:1, table a.b: said so (error {number})")
    assert StatementRefused(1406, "too long at row 7", "h").row == 6


class _Answers:
    """As much of a session as answers questions."""

    def __init__(self, **answers: str) -> None:
        self._answers = answers

    def ask(self, sql: str, values: object = ()) -> list[tuple[str, ...]]:
        if "GRANTS" in sql:
            return [(self._answers["grants"],)]
        if "super_read_only" in sql:
            found = self._answers.get("above", "")
            return [("super_read_only", found)] if found else []
        return [(self._answers["shut"],)]


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ({"shut": "0", "grants": ""}, False),
        ({"shut": "1", "grants": "GRANT SELECT ON *.* TO u"}, True),
        ({"shut": "1", "grants": "GRANT ALL PRIVILEGES ON *.* TO u"}, False),
        ({"shut": "1", "grants": "GRANT ALL PRIVILEGES ON *.* TO u", "above": "ON"}, True),
        ({"shut": "ON", "grants": "GRANT READ ONLY ADMIN ON *.* TO u"}, False),
    ],
)
def test_a_read_only_downstream_is_refused(answers: dict[str, str], refused: bool) -> None:
    sink: Any = assemble(spec_of()).sink
    if not refused:
        sink._refuse_read_only(_Answers(**answers))
        return
    with pytest.raises(SinkUnwritable, match="read-only; make it writable") as said:
        sink._refuse_read_only(_Answers(**answers))
    assert said.value.verdict is Verdict.STOP


def test_the_fence_names_who_owns() -> None:
    ledger = Ledger("meta", "feed")
    ledger.check([("7",)], 7)
    with pytest.raises(Fenced, match="epoch 8"):
        ledger.check([("8",)], 7)
    with pytest.raises(
        TargetLost, match=r"row of changefeed 'feed' in meta\.rowferry_fence is gone"
    ):
        ledger.check([], 7)
    (note,) = ledger.note_delivered(LaneNote("it's \\", LanePlace(1, 2, 3, 4), None))
    assert b"x'" in note
    assert b"\\" not in note
