"""The captured tables while the log is framed: which version a TABLE_MAP has, what DDL changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.own_tables import MARK
from rowferry.change.position import Stage
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement, SourceUnsupported, TableContradicted
from rowferry.flow.capture.announcements import dropped, forget_database
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.ddl.online_copies import is_online_copy
from rowferry.flow.capture.binlog.ddl.reader import ANSI_QUOTES
from rowferry.flow.capture.binlog.ddl.statements import Effects, effects
from rowferry.flow.capture.binlog.decode.table_map import (
    MappedTable,
    infer_schema,
    is_sequence,
    mismatch,
    other_key,
    with_known_ids,
)
from rowferry.flow.capture.binlog.frame.events import Query
from rowferry.flow.capture.binlog.frame.framing_judge import LoggedStatement
from rowferry.flow.capture.binlog.frame.look_ahead import altered_since
from rowferry.flow.capture.binlog.snapshot.same_table import misleads
from rowferry.flow.capture.binlog.snapshot.snapshots import take_back
from rowferry.flow.capture.binlog.state import BinlogState, BinlogTable
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.ddl.session_modes import modes_of
from rowferry.mysql.ddl.statement import create_sql, parse_create, plan_ddl
from rowferry.mysql.ddl.text import mentioned, plain_text
from rowferry.mysql.feed_mark import is_marked
from rowferry.mysql.server_form import in_order

LOG = logging.getLogger(__name__)

# Rows get another table, or another partition: what was read by the old names may be anybody's.
_MOVES: Final = frozenset(
    {
        DdlKind.RENAME_TABLE,
        DdlKind.EXCHANGE_PARTITION,
        DdlKind.ADD_PARTITION,
        DdlKind.REORGANIZE_PARTITION,
        DdlKind.ALTER_PARTITIONING,
        DdlKind.REMOVE_PARTITIONING,
    }
)


class CapturedTables:
    """Answers a scanner's questions from the state, and changes the state by statements."""

    def __init__(
        self,
        state: BinlogState,
        server: BinlogServer,
        decision: Decision,
        snapshots: bool,
        follow_swaps: bool,
        drop_marked: bool = False,
        warn: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._state = state
        self._server = server
        self._decision = decision
        self._snapshots = snapshots
        self._follow_swaps = follow_swaps
        self._drop_marked = drop_marked
        self._warn = warn
        self._made: list[TableSchema] = []
        # Versions that rows have replaced, with the commit-ts of these rows.
        self._ahead: list[tuple[int, TableSchema]] = []

    def made(self) -> tuple[TableSchema, ...]:
        """Return the versions that rows, not statements, have made since the last call."""
        new_versions, self._made = tuple(self._made), []
        return new_versions

    # --- what a scanner asks ---------------------------------------------------------------------

    def is_mark(self, table: TableId) -> bool:
        """Return whether rows of this table say that a changefeed wrote their transaction."""
        return self._drop_marked and table.table.lower() == MARK

    def source_ms(self) -> int:
        """Ask the source's clock."""
        return self._server.clock_ms()

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        """Return the version that the rows after a TABLE_MAP have; None: not captured.

        A table whose columns are not those of its version gets a new version with this commit-ts:
        read from the server where it is like that now, else made from the log's own description,
        where the server's is newer, or was not certain before.

        Raises:
            SourceUnsupported: the log does not describe the table's columns.
            TableContradicted: the server says otherwise, and no statement tells why.
        """
        name = self._name(mapped.table)
        table = self._state.by_name().get(name)
        if table is None:
            if not self._decision.keeps_table(name) or is_sequence(mapped):
                return None
            return self._met_without_statement(mapped, name, commit_ts)
        if table.progress.stage is Stage.REGISTERED:
            return None
        self._require_metadata(mapped, table.schema)
        words = mismatch(mapped, table.schema) or self._other_key(mapped, table.schema)
        if not words:
            return table.schema
        version = self._now_or_inferred(mapped, name, table.schema).at(commit_ts)
        what = "columns" if mismatch(mapped, table.schema) else "key"
        self._warn(
            f"the {what} of {name} changed without a statement that says so: {words}"
            + ("; the log's own description is followed" if version.inferred else "")
        )
        if not self._decision.captures(version):
            self._leave(version)
            return None
        self._ahead.append((commit_ts, table.schema))
        self._state.put(version, table.progress.stage)
        self._made.append(version)
        return version

    def is_captured(self, table: TableId) -> bool:
        """Return whether rows of a table are delivered as the log tells them now."""
        known = self._state.by_name().get(self._name(table))
        return known is not None and known.progress.stage is not Stage.REGISTERED

    def effects(self, query: Query) -> Effects | None:
        """Return what a statement does to captured tables; None: nothing."""
        known = self._state.by_name()
        effect = effects(
            query.sql,
            query.database,
            {name: t.schema for name, t in known.items()},
            self._decision.keeps_table,
            self._state.take_id,
            self._server.facts,
            self._server.settings,
            query.sql_mode,
            lambda name: known[name].is_announced,
        )
        if effect is None or not self._concerns(effect):
            return None
        if effect.filled:
            effect = replace(effect, filled=tuple(filter(self._may_be_captured, effect.filled)))
        return effect

    def _may_be_captured(self, name: TableId) -> bool:
        """Return whether a table that was made a while ago is captured; one that is gone, maybe."""
        now = self._server.table(name, 0)
        return now is None or self._decision.captures(now)

    def _unsettled_by(self, effect: Effects) -> list[BinlogTable]:
        """Return the tables whose rows cannot be trusted any more behind a statement.

        Parts of a snapshot are read at their own moments, by the names of the table, its partitions
        and columns. The log has not passed these moments yet: nobody knows which parts were read
        before rows or columns got another name, and which after that. A table that was read at one
        exact place, which the log has not passed, has seen the statement already. Nor can what was
        delivered of a table from which the statement took rows away.
        """
        moved: dict[int, BinlogTable] = {}
        both = []
        for change in effect.changes:
            for known in self._touched(change):
                both.append(known)
                if known.schema.table_id in self._state.lows:
                    moved[known.schema.table_id] = known
                elif self._state.is_unsettled(known) and _moves(change, known):
                    moved[known.schema.table_id] = known
        for name in effect.unread:
            unread = self._state.by_name().get(name)
            if unread is not None and self._state.is_unsettled(unread):
                if not any(c.table == name for c in effect.changes):
                    moved[unread.schema.table_id] = unread
        for name in effect.thinned if self._snapshots else ():
            if (thinned := self._state.by_name().get(name)) is not None:
                moved[thinned.schema.table_id] = thinned
        if any(c.kind is DdlKind.EXCHANGE_PARTITION for c in effect.changes):
            waits = any(
                t.progress.stage is Stage.REGISTERED or self._state.is_joining(t.schema.table_id)
                for t in both
            )
            if moved or waits:  # readers cannot exchange what they do not have
                moved.update({t.schema.table_id: t for t in both})
        return [t for t in moved.values() if t.progress.stage is not Stage.REGISTERED]

    def _touched(self, change: SchemaChange) -> list[BinlogTable]:
        """Return the captured tables that a change is about."""
        tables = self._state.tables
        ids = {change.dropped_table_id, change.schema.table_id if change.schema else 0}
        if change.schema is None and (named := self._state.by_name().get(change.table)):
            ids.add(named.schema.table_id)
        return [tables[i] for i in sorted(ids) if i in tables]

    def named(self, query: Query) -> str:
        """Return the captured table that a statement names, for an error; empty: none."""
        known = self._state.by_name()
        plain = plain_text(query.sql, self._server.facts, bool(query.sql_mode & ANSI_QUOTES))
        for written, _ in mentioned(plain, query.database):
            name = self._name(written)
            if name in known:
                return str(name)
        return ""

    def _concerns(self, effect: Effects) -> bool:
        """Return whether something of the effects reaches the feed."""
        if effect.unread or effect.swapped:
            return True
        return any(self._reaches(change) for change in effect.changes)

    def _reaches(self, change: SchemaChange) -> bool:
        tables = self._state.tables
        if change.dropped_table_id in tables or self._decision.keeps_schema_change(change):
            return True
        schema = change.schema
        if schema is None:
            return False
        return schema.table_id in tables or self._decision.captures(schema)

    def _name(self, written: TableId) -> TableId:
        """Return the name under which a table is captured, whatever case the log writes it in."""
        known = self._state.by_name()
        if not self._server.settings.lower_case or written in known:
            return written
        small = (written.database.lower(), written.table.lower())
        for name in known:
            if (name.database.lower(), name.table.lower()) == small:
                return name
        return self._server.settings.kept(written)

    def _met_without_statement(
        self, mapped: MappedTable, name: TableId, commit_ts: int
    ) -> TableSchema | None:
        """Take up a table that no statement has announced; its rows of before are not in the log.

        Where the feed has snapshots it joins with one, else its rows are taken from here on.
        """
        table_id = self._state.take_id()
        now = self._server.table(name, table_id)
        if now is not None and not self._decision.captures(now):
            return None
        self._require_metadata(mapped)
        if now is None or mismatch(mapped, now):
            now = replace(infer_schema(mapped, now), id=name, table_id=table_id)
        version = now.at(commit_ts)
        if not self._decision.captures(version):
            return None
        if self._snapshots:
            self._warn(f"no statement in the log tells where {name} came from: it is read anew")
            self._state.put(version, Stage.REGISTERED)
            return None
        self._warn(
            f"no statement in the log tells where {name} came from: its rows are delivered from "
            "here on, those that it had before are not"
        )
        self._state.put(version, Stage.LOG)
        self._made.append(version)
        return version

    def rewind(self) -> None:
        """Forget the versions that rows have made behind the position: they are framed anew."""
        for commit_ts, before in reversed(self._ahead):
            if commit_ts > self._state.log.last_ts and before.table_id in self._state.tables:
                self._state.put(before, Stage.LOG)
        self._ahead.clear()

    def _now_or_inferred(
        self, mapped: MappedTable, name: TableId, before: TableSchema
    ) -> TableSchema:
        now = self._server.table(name, before.table_id)
        words = mismatch(mapped, now) if now is not None else ""
        if now is not None and _has_primary(before):
            words = words or other_key(mapped, now)
        if now is not None and not words:
            return with_known_ids(now, before)
        if words and not before.inferred:
            if not altered_since(self._server, self._state.log, name):
                raise TableContradicted(
                    f"{name}: {words}, as the server's catalog has it, and no statement in the log "
                    "explains that; make a new changefeed, or begin behind this place, or leave "
                    "the table out with filter.rules"
                )
        return replace(infer_schema(mapped, before), id=name, table_id=before.table_id)

    def _other_key(self, mapped: MappedTable, known: TableSchema) -> str:
        """Return words where a table has another key than its version says; "": it has not.

        Of a table without a primary key the log may tell another one than counts here: then that
        of the server is what counts, unless the log has still to tell how it came by it.
        """
        words = other_key(mapped, known)
        if not words or _has_primary(known):
            return words
        now = self._server.table(known.id, known.table_id)
        if now is None or now.handle_key == known.handle_key:
            return ""
        return "" if altered_since(self._server, self._state.log, known.id) else words

    def _require_metadata(self, mapped: MappedTable, known: TableSchema | None = None) -> None:
        """Refuse rows whose columns the log does not describe.

        Once the server describes columns again, rows that it wrote without that are read by the
        version in force, if that is certain and fits what the log does tell.
        """
        if mapped.has_metadata:
            return
        if not self._server.describes_columns():
            raise SourceUnsupported(
                f"the log does not name the columns of {mapped.table}; run: "
                "SET GLOBAL binlog_row_metadata = FULL, and start the changefeed again"
            )
        if known is None or known.inferred or mismatch(mapped, known):
            raise SourceUnsupported(
                f"the log does not name the columns of {mapped.table}, and what they were is not "
                "known; make a new changefeed"
            )

    # --- statements ------------------------------------------------------------------------------

    def apply(self, statement: LoggedStatement) -> tuple[SchemaChange, ...]:
        """Change the state by a statement; returns what goes downstream, in order.

        Each change has a commit-ts of its own, counted up from the statement's: where a RENAME
        swaps tables, their order decides which rows go where. (Only a table that is made and filled
        by one transaction has the commit-ts of its rows; and both tables of an exchange of
        partitions have one, as they have one statement.)
        """
        self._server.renew_settings()
        changes: list[SchemaChange] = []

        def stamp() -> int:
            return statement.commit_ts + (0 if self._state.log.txn_ts else len(changes))

        if unsettled := self._unsettled_by(statement.effects):
            for table in unsettled:
                changes += take_back(self._state, table, self._decision, stamp())
            effect = self.effects(statement.query) or Effects()
            statement = replace(statement, effects=effect)
        ours = tuple(changes)
        swapped = dict(statement.effects.swapped)
        passing = self._passing(statement.effects)
        for change in statement.effects.changes:
            whole = self._completed(change, statement)
            if whole is not None:
                shared = not whole.query and bool(changes)
                at = changes[-1].commit_ts if shared else stamp()
                changes += self._apply_one(whole, at, passing)
        for name, copy in swapped.items():
            changes += self._swap(name, copy, statement, stamp())
        listed = {c.table for c in statement.effects.changes} | swapped.keys()
        for name in statement.effects.unread:
            if name not in listed:
                change = SchemaChange(0, DdlKind.NONE, statement.query.sql.strip(), name)
                whole = self._completed(change, statement)
                if whole is not None:
                    changes += self._apply_one(whole, stamp())
        if self._drop_marked and is_marked(statement.query.sql_mode):
            return ours  # a changefeed ran it: it is followed, and not sent back
        modes = modes_of(statement.query.sql_mode, self._server.facts.flavour)
        return tuple(replace(change, sql_mode=modes) for change in changes)

    def _passing(self, effect: Effects) -> set[int]:
        """Return the captured tables that are captured behind a statement as well.

        Some may have a name on the way that the filter does not keep. Readers are told of it, as
        two tables cannot trade their names without a third one.
        """
        ends = {c.schema.table_id: c.schema for c in effect.changes if c.schema is not None}
        return {i for i, schema in ends.items() if self._decision.captures(schema)}

    def _completed(self, change: SchemaChange, statement: LoggedStatement) -> SchemaChange | None:
        """Return a change with the definition that its text did not tell; None: no table is left.

        What the server says now holds if nothing altered the table since; else the old facts are
        carried over and the log's own description corrects them with the next row.
        """
        if change.table not in statement.effects.unread or change.schema is not None:
            return change
        if change.kind is DdlKind.DROP_TABLE:
            return change  # the one that has its name now is another
        name = change.table
        old = self._state.by_name().get(change.previous or name)
        table_id = old.schema.table_id if old else self._state.take_id()
        now = self._server.table(name, table_id)
        fresh = now is not None and not altered_since(self._server, self._state.log, name)
        if old is not None and not fresh:
            now = replace(old.schema, id=name, inferred=True)
        elif old is not None and now is not None:
            now = with_known_ids(now, _after_statement(change, old.schema, now))
        elif now is not None and not fresh:
            now = replace(now, inferred=True)
        if now is None:
            LOG.warning("a table is gone before its definition could be read", extra={"t": name})
            now = _as_written(change, table_id)
        if now is None:
            return None
        kind = change.kind if change.kind is not DdlKind.NONE else DdlKind.MULTI_SCHEMA_CHANGE
        if old is None and (kind is DdlKind.MULTI_SCHEMA_CHANGE or not change.query):
            kind = DdlKind.RENAME_TABLE  # whatever it was, its rows may be there already
        query = change.query or create_sql(now)
        return replace(change, kind=kind, query=query, schema=now)

    def _apply_one(
        self, change: SchemaChange, commit_ts: int, passing: Collection[int] = ()
    ) -> list[SchemaChange]:
        """Change the state by one change of a statement, which brings `passing` tables back."""
        changes = self._cleared(change, commit_ts)
        if changes and not self._state.log.txn_ts:
            commit_ts += 1
        schema = change.schema.at(commit_ts) if change.schema is not None else None
        change = replace(change, commit_ts=commit_ts, schema=schema)
        if change.kind is DdlKind.DROP_TABLE and change.dropped_table_id in self._state.tables:
            last = self._state.tables[change.dropped_table_id].schema
            change = replace(change, last_schema=last)
        seen = self._as_seen(change)
        hidden = self._is_hidden(seen)
        if not hidden and self._is_delivered(seen):
            changes.append(seen)
        if change.dropped_table_id:
            self._state.forget(change.dropped_table_id)
        if schema is None:
            return changes
        if not self._decision.captures(schema):
            if changes and schema.table_id in self._state.tables:
                self._state.put(schema, Stage.LOG)  # readers know it by this name
            if schema.table_id not in passing:
                self._leave(schema)
        elif hidden:
            self._state.put(schema, Stage.REGISTERED)
        elif schema.table_id in self._state.tables or change.kind in (
            DdlKind.CREATE_TABLE,
            DdlKind.TRUNCATE_TABLE,
        ):
            now = self._state.put(schema, Stage.LOG)
            if change.kind is DdlKind.CREATE_TABLE:
                now.tell()
        else:
            stage = Stage.REGISTERED if self._snapshots else Stage.LOG
            self._state.put(schema, stage).tell()
        return changes

    def _cleared(self, change: SchemaChange, commit_ts: int) -> list[SchemaChange]:
        """Return the DROP of what readers have kept under the name that a table gets."""
        left = self._state.left
        if change.kind is DdlKind.DROP_DATABASE and self._decision.keeps_schema_change(change):
            forget_database(left, change.table.database, self._decision)
        if change.schema is None or change.table not in left:
            return []
        seen = self._as_seen(change)
        if self._is_hidden(seen) or not self._is_delivered(seen):
            return []
        if seen.kind is not DdlKind.CREATE_TABLE and seen.previous is None:
            return []
        table_id, unsure = left.pop(change.table).table_id, self._decision.renames
        return [dropped(change.table, table_id, commit_ts, unsure)]

    def _is_delivered(self, change: SchemaChange) -> bool:
        """Return whether readers are told: also where a table comes back from a name outside."""
        if change.previous is not None and change.schema is not None:
            if change.schema.table_id in self._state.tables:
                if not self._decision.keeps_table(change.previous):
                    change = replace(change, previous=None)
        return self._decision.keeps_schema_change(change)

    def _is_hidden(self, change: SchemaChange) -> bool:
        """Return whether a change of a table that waits is nothing for readers.

        Where they do not know the table, nobody knows what it was like at this place, until it
        joins. And those who have none of its rows have none to exchange.
        """
        waiting = [t for t in self._touched(change) if t.progress.stage is Stage.REGISTERED]
        if not waiting or change.kind is DdlKind.CREATE_TABLE:
            return False
        return not waiting[0].is_announced or change.kind is DdlKind.EXCHANGE_PARTITION

    def _leave(self, schema: TableSchema) -> None:
        """Go on without a table that is not captured as it is now, if it was."""
        if schema.table_id in self._state.tables and self._decision.keeps_table(schema.id):
            self._warn(
                f"{schema.id} has no primary key and no unique key of NOT NULL columns any more: "
                "its rows are not delivered from here on; give it one, or set force-replicate"
            )
        self._state.let_go(schema.table_id)

    def _let_go(self, schema: TableSchema, commit_ts: int) -> list[SchemaChange]:
        """Let a table go; returns the DROP that clears what was delivered of it."""
        return self._apply_one(dropped(schema.id, schema.table_id, commit_ts), commit_ts)

    def _as_seen(self, change: SchemaChange) -> SchemaChange:
        """Return a change as the feed sees it: a table renamed into it is a new table."""
        schema = change.schema
        if schema is None or schema.table_id in self._state.tables:
            return change
        if change.kind is DdlKind.CREATE_TABLE or not self._decision.captures(schema):
            return change
        if change.kind is DdlKind.TRUNCATE_TABLE:
            return change
        query = create_sql(schema)
        return replace(change, kind=DdlKind.CREATE_TABLE, query=query, previous=None)

    def _swap(
        self, name: TableId, copy: TableId, statement: LoggedStatement, commit_ts: int
    ) -> list[SchemaChange]:
        """Let a captured table go on as the one that took its name.

        Only the copy that a tool made is known to have the same rows; others are read.
        """
        old = self._state.by_name().get(name)
        table_id = old.schema.table_id if old else self._state.take_id()
        now = self._server.table(name, table_id)
        if now is None:
            return []
        if altered_since(self._server, self._state.log, name):
            now = replace(now, inferred=True)
        changes: list[SchemaChange] = []
        kind = DdlKind.MULTI_SCHEMA_CHANGE if old is not None else DdlKind.RENAME_TABLE
        if old is not None and not (self._follow_swaps and is_online_copy(name, copy)):
            changes = self._let_go(old.schema, commit_ts)
            now = replace(now, table_id=self._state.take_id())
            kind = DdlKind.RENAME_TABLE
        elif old is not None:
            now = with_known_ids(now, old.schema)
        query = statement.query.sql.strip()
        change = SchemaChange(0, kind, query, name, now)
        return changes + self._apply_one(change, commit_ts + len(changes))


def _has_primary(schema: TableSchema) -> bool:
    return any(i.primary for i in schema.indexes)


def _after_statement(change: SchemaChange, old: TableSchema, now: TableSchema) -> TableSchema:
    """Return the old definition after a statement, as far as its text tells which columns it has.

    What else it does, to keys for instance, only the server knows. But columns that it renames are
    the same as before.
    """
    after = _planned(change, old)
    return after if after is not None and after.by_name.keys() == now.by_name.keys() else old


def _planned(change: SchemaChange, old: TableSchema) -> TableSchema | None:
    """Return the definition that a statement's text makes of another; None: it does not tell."""
    former = change.previous or change.table
    try:
        planned = plan_ddl(change.query, former.database, {former: old}, lambda: 0)
    except (BadStatement, RecursionError):
        return None
    return next((c.schema for c in reversed(planned) if c.schema is not None), None)


def _moves(change: SchemaChange, table: BinlogTable) -> bool:
    """Return whether rows or columns that were read by their old names may be others behind it."""
    if change.kind in _MOVES:
        return True
    if change.dropped_table_id == table.schema.table_id:
        return False  # nothing of it is left
    after = change.schema or _planned(change, table.schema)
    return after is None or misleads(after, table.read_as)


def _as_written(change: SchemaChange, table_id: int) -> TableSchema | None:
    """Return the table that a statement's text makes, as far as that tells it; None: not at all.

    Rows may follow before it is dropped: whoever takes them must have been told of the table.
    """
    if change.kind is not DdlKind.CREATE_TABLE or not change.query:
        return None
    try:
        written = parse_create(change.query, change.table.database)
    except BadStatement:
        return None
    indexes = in_order(written.indexes)
    table = replace(written, id=change.table, table_id=table_id, indexes=indexes)
    return replace(table, partitioning=None, inferred=True)
