"""What faces show of settings and errors: no secret, TiCDC's names."""

from __future__ import annotations

import pytest

from rowferry.control.operator.settings.redaction import redacted_config, restored, restored_uri
from rowferry.control.operator.ticdc_codes import ticdc_code
from rowferry.errors import (
    BY_CODE,
    BadUri,
    ChangefeedExists,
    NoSuchChangefeed,
    NoSuchColumn,
    RowferryError,
    Verdict,
)
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

SECRET = "hush" + "hush"
# Codes with which TiCDC gives a changefeed up at once, without trying again.
FAST_FAIL = frozenset(
    {
        "CDC:ErrExpressionColumnNotFound",
        "CDC:ErrInvalidFilterExpression",  # its constant is called ErrExpressionParseFailed
        "CDC:ErrSchemaSnapshotNotFound",
        "CDC:ErrSyncRenameTableFailed",
        "CDC:ErrChangefeedUnretryable",
        "CDC:ErrCorruptedDataMutation",
        "CDC:ErrDispatcherFailed",
        "CDC:ErrColumnSelectorFailed",
        "CDC:ErrSinkURIInvalid",
        "CDC:ErrKafkaInvalidConfig",
        "CDC:ErrMySQLInvalidConfig",
        "CDC:ErrStorageSinkInvalidConfig",
        "CDC:ErrInvalidTableRoutingRule",
        "CDC:ErrTableRoutingFailed",
        "CDC:ErrTableRouteConflict",
        "CDC:ErrGCTTLExceeded",
        "CDC:ErrSnapshotLostByGC",
        "CDC:ErrStartTsBeforeGC",
        "CDC:ErrTableAfterNotSplitable",
    }
)
KAFKA = f"kafka://k1:9092/topic?protocol=avro&sasl-user=me&sasl-password={SECRET}"


def spec(config: dict[str, object], sink: str = KAFKA) -> ChangefeedSpec:
    source = Uri.parse(f"mysql://root:{SECRET}@db:3306/", "source")
    return ChangefeedSpec("feed", source, Uri.parse(sink, "sink"), config)


CONFIG: dict[str, object] = {
    "case-sensitive": True,
    "filter": {"rules": ["shop.*"]},
    "sink": {
        "schema-registry": f"http://me:{SECRET}@registry:8081",
        "dispatchers": [{"matcher": ["a.*"], "topic": "t"}],
        "kafka-config": {
            "sasl-mechanism": "PLAIN",
            "sasl-password": SECRET,
            "some-new-token": SECRET,
            "large-message-handle": {
                "claim-check-storage-uri": f"s3://b/?secret-access-key={SECRET}&region=x"
            },
        },
        "unheard-of": [f"http://a:{SECRET}@b/"],
    },
}


@pytest.mark.parametrize("sink", [KAFKA, "nobody://knows/it"])
def test_no_secret_is_shown_whatever_key_holds_it(sink: str) -> None:
    given = spec(CONFIG, sink)
    shown = redacted_config(given)
    assert SECRET not in f"{shown} {given.source} {given.sink}"
    assert shown["filter"] == {"rules": ["shop.*"]}
    assert shown["sink"]["dispatchers"] == [{"matcher": ["a.*"], "topic": "t"}]
    assert SECRET in str(given.config)


def test_what_is_no_secret_is_shown() -> None:
    kafka = redacted_config(spec(CONFIG))["sink"]["kafka-config"]
    assert (kafka["sasl-mechanism"], kafka["sasl-password"]) == ("PLAIN", "***")


def test_a_shown_configuration_can_be_sent_back() -> None:
    given = spec(CONFIG)
    assert restored(redacted_config(given), given.config) == given.config
    changed = {**redacted_config(given), "case-sensitive": False}
    assert restored(changed, given.config) == {**CONFIG, "case-sensitive": False}
    assert restored({"sink": {"new": "***"}}, {}) == {"sink": {"new": "***"}}


def test_a_shown_uri_can_be_sent_back_to_the_same_place_only() -> None:
    given = spec(CONFIG)
    assert restored_uri(None, given.sink) == given.sink.reveal()
    assert restored_uri(str(given.sink), given.sink) == given.sink.reveal()
    more = restored_uri(f"{given.sink}&max-message-bytes=9", given.sink)
    assert Uri.parse(more, "sink").parameter("sasl-password") == SECRET
    for moved in (str(given.sink).replace("k1", "k2"), str(given.source).replace("root", "me")):
        with pytest.raises(BadUri, match="another scheme, address or user"):
            restored_uri(moved, given.sink if "kafka" in moved else given.source)


@pytest.mark.parametrize("error", BY_CODE.values(), ids=lambda e: e.__name__)
def test_every_error_has_a_name_of_ticdc(error: type) -> None:
    status, name = ticdc_code(error("x"))
    assert status in (400, 401, 404, 409, 413, 500)
    assert name.startswith("CDC:Err")
    if name in FAST_FAIL and status == 500 and error.__name__ != "SnapshotGone":
        assert error.verdict is Verdict.STOP


def test_well_known_codes() -> None:
    assert ticdc_code(NoSuchChangefeed("x")) == (400, "CDC:ErrChangeFeedNotExists")
    assert ticdc_code(ChangefeedExists("x")) == (400, "CDC:ErrChangeFeedAlreadyExists")
    assert ticdc_code(NoSuchColumn("x")) == (400, "CDC:ErrExpressionColumnNotFound")
    assert ticdc_code(RowferryError("x"))[1] == "CDC:ErrUnexpected"
