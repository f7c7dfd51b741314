"""Signatures as AWS documents them: its own examples."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest

from rowferry.flow.sink.search.signing import AwsSigner

# The account of AWS's Signature Version 4 test suite.
EXAMPLE = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
SIGNED = {"host": "example.amazonaws.com", "x-amz-date": "20150830T123600Z"}
NOTHING = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    ("method", "query", "signature"),
    [
        ("GET", {}, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", {}, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            {"Param2": "value2", "Param1": "value1"},
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
    ],
)
def test_the_examples_of_aws(method: str, query: dict[str, str], signature: str) -> None:
    signer = AwsSigner(*EXAMPLE, "", "us-east-1", "service")
    assert signer.signature(method, "/", query, SIGNED, NOTHING) == signature


def test_what_a_request_gets() -> None:
    now = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
    signer = AwsSigner(*EXAMPLE, "token", "us-east-1", "es")
    headers = signer.headers("GET", "h", "/a%2Cb/_doc/1", {}, b"", now)
    assert headers["x-amz-date"] == "20150830T123600Z"
    assert headers["x-amz-security-token"] == "token"
    assert headers["x-amz-content-sha256"] == NOTHING
    names = "host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
    scope = "AKIDEXAMPLE/20150830/us-east-1/es/aws4_request"
    lead = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature="
    assert headers["Authorization"].startswith(lead)
    assert EXAMPLE[1] not in repr(signer)
