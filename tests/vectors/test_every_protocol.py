"""Every registered protocol has vectors that are read, and a planted one without them is found."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import test_codec_vectors
from vector_cases import HERE, OWN_FORMS, cases_of, cases_with_bytes, protocols, wrong

from page_examples import toy_codec, toy_vectors
from rowferry.flow.encode.plain_json.codec import PlainJson
from rowferry.registry import CODECS


def test_every_protocol_has_vectors() -> None:
    assert wrong() == []


@pytest.mark.parametrize("name", protocols())
def test_every_case_is_collected(name: str) -> None:
    reader = import_module(OWN_FORMS.get(name, "test_codec_vectors"))
    assert cases_of(name)
    assert set(cases_of(name)) <= set(reader.CASES)


def test_forms_are_of_protocols() -> None:
    assert set(OWN_FORMS) < set(protocols())


# --- planted -------------------------------------------------------------------------------------


class Newcomer(PlainJson):
    """A new protocol, which is right."""


class Wrong(PlainJson):
    """A new protocol that writes one byte too many."""

    def file_head(self, table: object) -> bytes:
        return b" "


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """All vectors, in a folder of the test's own."""
    shutil.copytree(HERE, tmp_path / "vectors", ignore=shutil.ignore_patterns("*.py", "__*"))
    return tmp_path / "vectors"


def plant(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setitem(CODECS._places, "new-comer", f"{kind.__module__}:{kind.__name__}")


def test_a_new_protocol_without_vectors_is_found(
    vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrong(vectors) == []
    plant(monkeypatch, Newcomer)
    assert wrong(vectors) == [
        "no vectors for protocol 'new-comer': add tests/vectors/new_comer/<case>/"
    ]


@pytest.mark.parametrize(("kind", "is_right"), [(Newcomer, True), (Wrong, False)])
def test_vectors_of_a_new_protocol_are_collected_and_judge_it(
    vectors: Path, monkeypatch: pytest.MonkeyPatch, kind: type, is_right: bool
) -> None:
    shutil.copytree(vectors / "json", vectors / "new_comer")
    before = cases_with_bytes(vectors)
    plant(monkeypatch, kind)
    (*_, case) = found = [c for c in cases_with_bytes(vectors) if c not in before]
    assert len(found) == len(cases_of("json"))
    test_codec_vectors.test_bytes(case)
    if is_right:
        test_codec_vectors.test_file_head(case)
        return
    with pytest.raises(AssertionError):
        test_codec_vectors.test_file_head(case)


def test_the_codec_of_the_page_has_the_vectors_of_the_page(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Follow `docs/adding-a-codec.md`: the module, its line among the names, its vectors."""
    name, place, code = toy_codec()
    (tmp_path / "toy_with_vectors.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(CODECS._places, name, f"toy_with_vectors:{place.split(':')[1]}")
    missing = (
        f"no vectors for protocol {name!r}: add tests/vectors/{name.replace('-', '_')}/<case>/"
    )
    assert wrong(vectors) == [missing]
    for path, content in toy_vectors().items():
        file = vectors / name.replace("-", "_") / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert wrong(vectors) == []
    (case,) = cases_of(name, vectors)
    test_codec_vectors.test_bytes(case)
    test_codec_vectors.test_file_head(case)
    test_codec_vectors.test_reading_and_writing_again_gives_the_same_bytes(case)
    content = (case / "value.bin").read_text()
    (case / "value.bin").write_text(content.replace("7", "8", 1))
    with pytest.raises(AssertionError):
        test_codec_vectors.test_bytes(case)
    sys.modules.pop("toy_with_vectors", None)


def test_one_wrong_byte_is_found(vectors: Path) -> None:
    case = next(c for c in cases_with_bytes(vectors) if c.parent.name == "csv")
    test_codec_vectors.test_bytes(case)
    content = (case / "value.bin").read_bytes()
    (case / "value.bin").write_bytes(content[:-3] + b"?" + content[-2:])
    with pytest.raises(AssertionError):
        test_codec_vectors.test_bytes(case)


def test_vectors_of_nobody_and_from_nowhere_are_found(vectors: Path) -> None:
    shutil.copytree(vectors / "json", vectors / "forgotten")
    origin = next(iter(cases_of("csv", vectors))) / "ORIGIN"
    origin.unlink()
    found = wrong(vectors)
    assert f"csv/{origin.parent.name}: its ORIGIN is missing" in found
    assert len([w for w in found if w.startswith("forgotten/")]) == len(cases_of("json"))
