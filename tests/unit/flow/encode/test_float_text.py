from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from rowferry.columnar.float_text import GENERAL, PLAIN, float_text


def plain(value: float) -> str:
    """Python's shortest digits, without an exponent."""
    shown = format(Decimal(repr(value)), "f")
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def doubles() -> np.ndarray:
    rng = np.random.default_rng(20)
    anything = rng.integers(0, 1 << 64, 20_000, dtype=np.uint64).view(np.float64)
    money = np.round(rng.normal(size=5_000) * 1000, 2)
    whole = rng.integers(-(10**17), 10**17, 5_000).astype(np.float64)
    powers, least = 2.0 ** np.arange(-1074, 1024), np.arange(1, 2_000) * 5e-324
    tens = np.array([float(f"1e{i}") for i in range(-323, 309)])
    found = np.concatenate([anything, money, whole, powers, least, tens, [0.0, -0.0]])
    return found[np.isfinite(found)]


def test_doubles_have_the_shortest_digits() -> None:
    values = doubles()
    assert float_text(values, PLAIN).to_pylist() == [plain(v) for v in values.tolist()]


def test_floats_have_the_shortest_digits_of_their_own_width() -> None:
    rng = np.random.default_rng(21)
    bits = np.concatenate(
        [
            rng.integers(0, 1 << 32, 20_000, dtype=np.uint32),
            np.arange(2_000, dtype=np.uint32),
            np.arange(255, dtype=np.uint32) << 23,
        ]
    )
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    wanted = [np.format_float_positional(v, unique=True, trim="-") for v in values]
    assert float_text(values, PLAIN).to_pylist() == wanted


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e-4, "0.0001"),
        (1e-5, "1e-05"),
        (1.5e-7, "1.5e-07"),
        (123456789e12, "123456789000000000000"),
        (1e21, "1e+21"),
        (-1.25e100, "-1.25e+100"),
        (5e-324, "5e-324"),
        (-0.0, "-0"),
    ],
)
def test_general_style_has_exponents_at_the_ends(value: float, shown: str) -> None:
    assert float_text(np.array([value]), GENERAL).to_pylist() == [shown]


@pytest.mark.parametrize("style", [PLAIN, GENERAL])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_is_no_number_is_zero(style: int, kind: type) -> None:
    values = np.array([np.nan, -np.nan, np.inf, -np.inf], kind)
    assert float_text(values, style).to_pylist() == ["0"] * 4


def test_nothing() -> None:
    assert float_text(np.zeros(0), PLAIN).to_pylist() == []
