"""Our errors under the names and HTTP codes by which TiCDC's clients know them.

The nearest ancestor of an error that the table names decides. Errors of ours that have no
counterpart get the general name of their kind.
"""

from __future__ import annotations

from typing import Final

from rowferry import errors as e

BAD, FAILED = 400, 500  # its clients know no other status

_CODES: Final[dict[type[e.RowferryError], tuple[int, str]]] = {
    e.RowferryError: (FAILED, "ErrUnexpected"),
    # what the user asked for
    e.BadInput: (BAD, "ErrAPIInvalidParam"),
    e.UnknownOption: (BAD, "ErrInvalidReplicaConfig"),
    e.BadOption: (BAD, "ErrInvalidReplicaConfig"),
    e.OptionsConflict: (BAD, "ErrInvalidReplicaConfig"),
    e.WrittenOntoItself: (BAD, "ErrSameUpstreamDownstream"),
    e.BadConfigFile: (BAD, "ErrInvalidReplicaConfig"),
    e.BadUri: (BAD, "ErrSinkURIInvalid"),
    e.BadFilterRule: (BAD, "ErrFilterRuleInvalid"),
    e.BadStatement: (BAD, "ErrAPIInvalidParam"),
    e.UnknownName: (BAD, "ErrSinkURIInvalid"),
    e.NoSuchTable: (BAD, "ErrFilterRuleInvalid"),
    e.BadChangefeedId: (BAD, "ErrInvalidChangefeedID"),
    e.TargetTsTooEarly: (BAD, "ErrTargetTsBeforeStartTs"),
    e.TableIneligible: (BAD, "ErrTableIneligible"),
    e.BadDispatchRule: (BAD, "ErrDispatcherFailed"),
    e.BadRoute: (BAD, "ErrInvalidTableRoutingRule"),
    e.BadEventFilter: (BAD, "ErrInvalidFilterExpression"),
    e.BadIgnoredEvent: (BAD, "ErrInvalidIgnoreEventType"),
    e.BadIgnoredStatement: (BAD, "ErrFilterRuleInvalid"),
    e.NoSuchColumn: (BAD, "ErrExpressionColumnNotFound"),
    e.BadColumnSelector: (BAD, "ErrColumnSelectorFailed"),
    e.TargetUnfit: (BAD, "ErrMySQLInvalidConfig"),
    # the meta database
    e.StateError: (FAILED, "ErrMetaOpFailed"),
    e.MetaUnavailable: (FAILED, "ErrMetaOpFailed"),
    e.MetaDamaged: (FAILED, "ErrMetaOpFailed"),
    e.SpecChanged: (BAD, "ErrChangefeedUpdateRefused"),
    e.IllegalMove: (BAD, "ErrChangefeedUpdateRefused"),
    e.LeaseHeld: (BAD, "ErrChangefeedUpdateRefused"),
    e.Fenced: (BAD, "ErrChangefeedUpdateRefused"),
    e.NoSuchChangefeed: (BAD, "ErrChangeFeedNotExists"),
    e.ChangefeedExists: (BAD, "ErrChangeFeedAlreadyExists"),
    e.PlanRefused: (FAILED, "ErrChangefeedUnretryable"),
    # sources: whoever creates a changefeed can correct these
    e.SourceError: (FAILED, "ErrUpstreamNotFound"),
    e.LogLost: (BAD, "ErrStartTsBeforeGC"),
    e.CorruptLog: (FAILED, "ErrCorruptedDataMutation"),
    e.SourceMismatch: (BAD, "ErrUpstreamMissMatch"),
    e.SourceUnsupported: (BAD, "ErrVersionIncompatible"),
    e.TableVersionUnknown: (FAILED, "ErrSchemaSnapshotNotFound"),
    e.LoginRefused: (BAD, "ErrMySQLConnectionError"),
    e.ReplicaIdTaken: (BAD, "ErrInvalidReplicaConfig"),
    e.EventUnknown: (FAILED, "ErrChangefeedUnretryable"),
    e.SnapshotGone: (FAILED, "ErrSnapshotLostByGC"),
    # sinks
    e.SinkError: (FAILED, "ErrReachMaxTry"),
    e.RowRejected: (FAILED, "ErrChangefeedUnretryable"),
    e.SinkUnwritable: (BAD, "ErrSinkURIInvalid"),
    e.SinkOwned: (BAD, "ErrStorageSinkInvalidConfig"),
    e.SinkDamaged: (BAD, "ErrStorageSinkInvalidConfig"),
    e.FileConflict: (FAILED, "ErrChangefeedUnretryable"),
    e.SchemaRefused: (BAD, "ErrAvroSchemaAPIError"),
    e.TopicRefused: (BAD, "ErrKafkaInvalidConfig"),
    e.SchemaChangeRefused: (FAILED, "ErrExecDDLFailed"),
    # codecs
    e.EncodeError: (FAILED, "ErrEncodeFailed"),
    e.MessageTooLarge: (FAILED, "ErrMessageTooLarge"),
    e.DecodeError: (FAILED, "ErrDecodeFailed"),
}


def ticdc_code(error: e.RowferryError) -> tuple[int, str]:
    """Return the HTTP status of an error, and TiCDC's name for it (`CDC:Err…`)."""
    status, name = next(_CODES[k] for k in type(error).__mro__ if k in _CODES)
    return status, f"CDC:{name}"
