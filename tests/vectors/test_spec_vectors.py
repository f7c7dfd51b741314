"""Ids, states, protocols and sink URIs, against published expectations.

Texts of errors are compared too, where the same part refuses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from outside import cases

from codec_kit import codec_for
from rowferry.control.lifecycle import MOVES, Verb
from rowferry.errors import BadChangefeedId, BadInput
from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.csv.codec import Csv
from rowferry.flow.sink.storage.options import LayoutOptions, StorageOptions
from rowferry.registry import SINKS
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import check_changefeed_id
from rowferry.spec.legacy import parse_protocol
from rowferry.spec.sink_traits import check_atomicity, check_protocol
from rowferry.spec.uri import Uri


def vectors(area: str) -> list[Any]:
    kept = Path(__file__).parent / "spec" / f"{area}.json"
    rows = {r["id"]: r for r in json.loads(kept.read_text("utf-8"))}
    rows |= {r["id"]: r for r in cases(area)}
    assert rows
    return [pytest.param(r["input"], r["expected"], id=i) for i, r in sorted(rows.items())]


@pytest.mark.parametrize(("given", "expected"), vectors("changefeed-id"))
def test_changefeed_id(given: dict[str, Any], expected: dict[str, Any]) -> None:
    if expected.get("ok"):
        assert check_changefeed_id(given["id"]) == given["id"]
    else:
        with pytest.raises(BadChangefeedId):
            check_changefeed_id(given["id"])


@pytest.mark.parametrize(("given", "expected"), vectors("changefeed-state"))
def test_changefeed_state(given: dict[str, Any], expected: dict[str, Any]) -> None:
    resumable = {str(state) for state, verb in MOVES if verb is Verb.RESUME}
    assert (given["state"] in resumable) is expected["resumable"]


@pytest.mark.parametrize(("given", "expected"), vectors("protocol"))
def test_protocol(given: dict[str, Any], expected: dict[str, Any]) -> None:
    # The vectors call it by the name of its implementation.
    names = {"open": "open-protocol"}
    if "protocol" not in expected:
        with pytest.raises(BadInput) as caught:
            parse_protocol(given["protocol"])
        assert expected.get("error_contains", "") in str(caught.value)
        return
    wanted = names.get(expected["protocol"], expected["protocol"])
    assert parse_protocol(given["protocol"]) == wanted


@pytest.mark.parametrize(("given", "expected"), vectors("sink-uri"))
def test_sink_uri(given: dict[str, Any], expected: dict[str, Any]) -> None:
    uri = Uri.parse(given["sink_uri"], "sink")

    def check() -> str:
        sink = sink_traits(uri.scheme)
        check_protocol(sink, uri.scheme, uri.parameter("protocol"))
        return check_atomicity(sink, uri.scheme, uri.parameter("transaction-atomicity"))

    if uri.scheme not in SINKS.names():
        with pytest.raises(BadInput, match=f"unknown scheme '{uri.scheme}'"):
            check()
        return
    if "error_contains" in expected:
        with pytest.raises(BadInput) as caught:
            check()
        assert expected["error_contains"] in str(caught.value)
    else:
        assert (check() == "none") is expected["split_txn"]


@pytest.mark.parametrize(("given", "expected"), vectors("storage-uri"))
def test_storage_uri(given: dict[str, Any], expected: dict[str, Any]) -> None:
    text = given["sink_uri"] + ("&" if "?" in given["sink_uri"] else "?") + "protocol=csv"
    tables = [StorageOptions.TABLE, LayoutOptions.TABLE]
    if expected.get("ok"):
        spec, _ = build_spec("range://h:1", text, tables=tables, sinks=sink_traits)
        assert sink_traits(spec.sink.scheme).takes_files
    else:
        # An unknown scheme is not of any sink here, so it is not refused as a storage sink.
        ours = {"can't create cloud storage sink with unsupported scheme": "unknown scheme 'xxx'"}
        words = expected["error_contains"]
        with pytest.raises(BadInput) as caught:
            build_spec("range://h:1", text, tables=tables, sinks=sink_traits)
        assert ours.get(words, words) in str(caught.value)


@pytest.mark.parametrize(("given", "expected"), vectors("csv-config"))
def test_csv_config(given: dict[str, Any], expected: dict[str, Any]) -> None:
    # An encoding that is empty was not given.
    section = {k.replace("_", "-"): v for k, v in given.items() if v or not k.startswith("binary")}

    def build() -> None:
        spec, _ = build_spec(
            "range://h:1",
            "blackhole://?protocol=csv",
            {"sink": {"csv": section}},
            None,
            Csv.TABLES,
            sinks=sink_traits,
        )
        codec_for(Csv, spec)

    if expected.get("ok"):
        build()
    else:
        with pytest.raises(BadInput) as caught:
            build()
        assert expected["error_contains"] in str(caught.value)
