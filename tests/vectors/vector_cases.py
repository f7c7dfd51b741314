"""Which vectors there are: those of every registered protocol, by the name of its folder.

A case is a folder with `change.json` (a table and its changes), what must come of it, and `ORIGIN`,
which says where that expectation comes from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rowferry.registry import CODECS, ROW_FORMATS

HERE: Final = Path(__file__).parent
# Protocols whose expectation is no `value.bin`, and the module that reads its form.
OWN_FORMS: Final = {
    "avro": "test_avro_vectors",
    "canal": "test_message_vectors",
    "copy-rows": "test_copy_rows_vectors",
    "debezium": "test_message_vectors",
    "debezium-avro": "test_message_vectors",
    "open-protocol": "test_open_protocol_vectors",
    "parquet": "test_parquet_vectors",
    "search-documents": "test_search_documents_vectors",
    "simple": "test_message_vectors",
    "sql-rows": "test_sql_rows_vectors",
}


def protocols() -> list[str]:
    """Return all that is registered."""
    return sorted([*CODECS.names(), *ROW_FORMATS.names()])


def cases_of(protocol: str, folder: Path = HERE) -> list[Path]:
    """Return the cases of a protocol."""
    own = folder / protocol.replace("-", "_")
    return sorted(p.parent for p in own.glob("*/change.json"))


def cases_with_bytes(folder: Path = HERE) -> list[Path]:
    """Return the cases of all protocols that have no form of their own."""
    return [
        case for name in protocols() if name not in OWN_FORMS for case in cases_of(name, folder)
    ]


def wrong(folder: Path = HERE) -> list[str]:
    """Say which protocols have no vectors, and which vectors are nobody's or come from nowhere."""
    found = [
        f"no vectors for protocol {name!r}: add tests/vectors/{name.replace('-', '_')}/<case>/"
        for name in protocols()
        if not cases_of(name, folder)
    ]
    known = {case for name in protocols() for case in cases_of(name, folder)}
    for case in sorted(p.parent for p in folder.glob("*/*/change.json")):
        name = f"{case.parent.name}/{case.name}"
        if case not in known:
            found.append(f"{name}: no protocol of this name is registered")
        if not (case / "ORIGIN").exists() or not (case / "ORIGIN").read_text().strip():
            found.append(f"{name}: its ORIGIN is missing")
    return found
