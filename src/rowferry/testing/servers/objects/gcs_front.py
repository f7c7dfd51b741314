"""The writing half of Google Cloud Storage's XML interface, in front of a server that lacks it.

fake-gcs-server reads objects by the XML interface, which clients use, and writes them by the JSON
interface only. Here puts, copies and uploads in parts are handed on as that; the server itself
judges their conditions. Everything else passes unchanged.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import urllib3

from rowferry.testing.http_stub import HttpStub, StubRequests

_NS: Final = "http://doc.s3.amazonaws.com/2006-03-01"
_PASSED: Final = ("range", "content-type", "if-match", "if-none-match")


class GcsFront(HttpStub):
    """A listener on 127.0.0.1 that ends with its block."""

    def __init__(self, server: str) -> None:
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.http = urllib3.PoolManager(retries=False, timeout=60, maxsize=32)
        self.server = server
        super().__init__(type("_Bound", (_Request,), {"front": self}))

    def close(self) -> None:
        """Stop: connections are closed, and nobody listens any more. On repeat: nothing."""
        super().close()
        self.http.clear()


class _Request(StubRequests):
    """One connection."""

    front: GcsFront

    def do_GET(self) -> None:
        """Pass a read on."""
        self._pass_on()

    def do_HEAD(self) -> None:
        """Pass a question on."""
        self._pass_on()

    def do_DELETE(self) -> None:
        """Pass a removal on; an upload in parts is forgotten."""
        _, _, query = self._target()
        if "uploadId" in query:
            self.front.uploads.pop(query["uploadId"], None)
            return self.answer(204, b"")
        self._pass_on()

    def do_POST(self) -> None:
        """Begin or end an upload in parts."""
        bucket, name, query = self._target()
        self._body()
        if "uploads" in query:
            upload = secrets.token_hex(8)
            self.front.uploads[upload] = {}
            inner = f"<Bucket>{bucket}</Bucket><Key>x</Key><UploadId>{upload}</UploadId>"
            return self._xml("InitiateMultipartUploadResult", inner, {})
        parts = self.front.uploads.pop(query["uploadId"])
        whole = b"".join(parts[number] for number in sorted(parts))
        status, text, headers = self._write(bucket, name, whole)
        if status != 200:
            return self.answer(status, text, headers)
        inner = f"<Location/><Bucket/><Key/><ETag>{headers['ETag']}</ETag>"
        self._xml("CompleteMultipartUploadResult", inner, headers)

    def do_PUT(self) -> None:
        """Write, copy, or keep a part."""
        bucket, name, query = self._target()
        body = self._body()
        if "uploadId" in query:
            number = int(query["partNumber"])
            self.front.uploads[query["uploadId"]][number] = body
            return self.answer(200, b"", {"ETag": f'"{number}"'})
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            return self.answer(*self._write(bucket, name, body))
        _, _, old = unquote(source).lstrip("/").partition("/")
        # The server's own copy heeds no condition, so that it is made of a read and a write.
        path = f"/storage/v1/b/{_part(bucket)}/o/{_part(old)}?alt=media"
        answer = self.front.http.request("GET", self.front.server + path)
        if answer.status != 200:
            return self.answer(answer.status, answer.data)
        status, text, headers = self._write(bucket, name, answer.data)
        if status != 200:
            return self.answer(status, text, headers)
        self._xml("CopyObjectResult", "<ETag>x</ETag>", headers)

    def _write(self, bucket: str, name: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        query = {"uploadType": "media", "name": name}
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None:
            query["ifGenerationMatch"] = wanted
        url = f"{self.front.server}/upload/storage/v1/b/{_part(bucket)}/o?{urlencode(query)}"
        answer = self.front.http.request("POST", url, body=body)
        if answer.status != 200:
            return answer.status, answer.data, {}
        made = json.loads(answer.data)
        generation = str(made["generation"])
        return 200, b"", {"ETag": f'"{made["etag"]}"', "x-goog-generation": generation}

    def _pass_on(self) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() in _PASSED}
        answer = self.front.http.request(
            self.command, self.front.server + self.path, headers=headers, decode_content=False
        )
        dropped = ("transfer-encoding", "connection", "content-length", "date")
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in dropped}
        if self.command == "HEAD":
            kept["Content-Length"] = answer.headers.get("Content-Length", "0")
        self.answer(answer.status, answer.data, kept)

    def _target(self) -> tuple[str, str, dict[str, str]]:
        parts = urlsplit(self.path)
        bucket, _, name = parts.path.lstrip("/").partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        return unquote(bucket), unquote(name), {k: v[0] for k, v in query.items()}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _xml(self, name: str, inner: str, headers: Mapping[str, str]) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='{_NS}'>{inner}</{name}>"
        self.answer(200, text.encode(), {**headers, "Content-Type": "application/xml"})


def _part(name: str) -> str:
    return quote(name, safe="")
