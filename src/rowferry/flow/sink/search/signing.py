"""Requests signed as Amazon OpenSearch Service wants them: AWS Signature Version 4."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

_METHOD: Final = "AWS4-HMAC-SHA256"
_UNRESERVED: Final = "-_.~"


@dataclass(frozen=True, slots=True)
class AwsSigner:
    """Who signs, and for which service of which region."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)
    region: str
    service: str

    def headers(
        self,
        method: str,
        host: str,
        path: str,
        query: Mapping[str, str],
        body: bytes,
        now: datetime | None = None,
    ) -> dict[str, str]:
        """Return the headers that a request must have beside others; `path` is as it is sent."""
        moment = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        signed = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
        if self.session_token:
            signed["x-amz-security-token"] = self.session_token
        signature = self.signature(method, path, query, signed, digest)
        names = ";".join(sorted(signed))
        scope = self._scope(moment)
        del signed["host"]
        return {
            **signed,
            "Authorization": f"{_METHOD} Credential={self.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}",
        }

    def signature(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        signed: Mapping[str, str],
        digest: str,
    ) -> str:
        """Return the signature over these headers, with lower-case names, and the body's digest."""
        pairs = sorted((_encoded(k), _encoded(v)) for k, v in query.items())
        request = "\n".join(
            [
                method,
                quote(path, safe=f"/{_UNRESERVED}"),  # a path is encoded twice, except for S3
                "&".join(f"{k}={v}" for k, v in pairs),
                *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
                "",
                ";".join(sorted(signed)),
                digest,
            ]
        )
        moment = signed["x-amz-date"]
        text = "\n".join(
            [_METHOD, moment, self._scope(moment), hashlib.sha256(request.encode()).hexdigest()]
        )
        key = f"AWS4{self.secret_key}".encode()
        for part in (moment[:8], self.region, self.service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, text.encode(), "sha256").hex()

    def _scope(self, moment: str) -> str:
        return f"{moment[:8]}/{self.region}/{self.service}/aws4_request"


def _encoded(text: str) -> str:
    return quote(text, safe=_UNRESERVED)
