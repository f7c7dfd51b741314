"""Compiled masks give what Python's own functions give, value by value."""

from __future__ import annotations

import hmac
import random

import pyarrow as pa
import pytest

from rowferry.flow.decide.hmac_kernels import HexHmac
from rowferry.flow.decide.star_kernels import keep_last

# Around the places where a message needs one more block.
SIZES = (0, 1, 7, 8, 54, 55, 56, 57, 63, 64, 65, 118, 119, 120, 127, 128, 129, 191, 192, 300)


@pytest.mark.parametrize("key", [b"k" * 16, bytes(range(64)), bytes(range(80))])
def test_hashes_are_those_of_the_standard(key: bytes) -> None:
    random_one = random.Random(len(key))
    values = [
        None if random_one.random() < 0.1 else random_one.randbytes(random_one.choice(SIZES))
        for _ in range(997)
    ]
    values += [random_one.randbytes(size) for size in SIZES]
    hashes = HexHmac(key)
    whole = pa.array(values, pa.large_binary())
    for part, wanted in ((whole, values), (whole.slice(5, 500), values[5:505])):
        expected = [None if v is None else hmac.new(key, v, "sha256").hexdigest() for v in wanted]
        assert hashes.of(part).to_pylist() == expected
    assert hashes.of(pa.array([None, None], pa.large_binary())).to_pylist() == [None, None]
    assert hashes.of(pa.array([b""], pa.large_binary())).to_pylist() == [
        hmac.new(key, b"", "sha256").hexdigest()
    ]


@pytest.mark.parametrize("letters", ["ab9", "aé漢😀"])
@pytest.mark.parametrize("keep", [0, 1, 4])
def test_stars_count_characters(letters: str, keep: int) -> None:
    random_one = random.Random(keep)
    values = [
        None if random_one.random() < 0.1 else "".join(random_one.choices(letters, k=length))
        for length in random_one.choices(range(12), k=500)
    ]

    def masked(text: str | None) -> str | None:
        if text is None:
            return None
        shown = text[-keep:] if 0 < keep < len(text) else ""
        return "*" * (len(text) - len(shown)) + shown

    whole = pa.array(values, pa.large_utf8())
    for part, wanted in ((whole, values), (whole.slice(7, 100), values[7:107])):
        found = keep_last(part, keep)
        found.validate(full=True)
        assert found.to_pylist() == [masked(text) for text in wanted]


def test_nothing_of_a_text_below_a_null_is_kept() -> None:
    texts = pa.array(["secret", "open"], pa.large_utf8())
    hidden = pa.LargeStringArray.from_buffers(
        2, texts.buffers()[1], texts.buffers()[2], pa.py_buffer(b"\x02"), 1
    )
    found = keep_last(hidden, 2)
    assert found.to_pylist() == [None, "**en"]
    assert b"et" not in found.buffers()[2].to_pybytes()
