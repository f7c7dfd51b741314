"""The writing half of Google Cloud Storage's XML interface, in front of a server that lacks it.

fake-gcs-server reads objects by the XML interface, which clients use, and writes them by the JSON
interface only. Here puts, copies and uploads in parts are handed on as that; the server itself
judges their conditions. Everything else passes unchanged.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import urllib3

from rowferry.testing.servers.child import HOST

_NS: Final = "http://doc.s3.amazonaws.com/2006-03-01"
_PASSED: Final = ("range", "content-type", "if-match", "if-none-match")


class GcsFront:
    """A listener on 127.0.0.1 that ends with its block."""

    def __init__(self, server: str) -> None:
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.http = urllib3.PoolManager(retries=False, timeout=60, maxsize=32)
        self.server = server
        self._listener = ThreadingHTTPServer(
            (HOST, 0), type("_Bound", (_Request,), {"front": self})
        )
        self._listener.daemon_threads = True
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,))

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self._listener.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        self.http.clear()


class _Request(BaseHTTPRequestHandler):
    """One connection."""

    front: GcsFront
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

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
            return self._answer(204, {}, b"")
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
        status, headers, text = self._write(bucket, name, whole)
        if status != 200:
            return self._answer(status, headers, text)
        inner = f"<Location/><Bucket/><Key/><ETag>{headers['ETag']}</ETag>"
        self._xml("CompleteMultipartUploadResult", inner, headers)

    def do_PUT(self) -> None:
        """Write, copy, or keep a part."""
        bucket, name, query = self._target()
        body = self._body()
        if "uploadId" in query:
            number = int(query["partNumber"])
            self.front.uploads[query["uploadId"]][number] = body
            return self._answer(200, {"ETag": f'"{number}"'}, b"")
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            return self._answer(*self._write(bucket, name, body))
        _, _, old = unquote(source).lstrip("/").partition("/")
        # The server's own copy heeds no condition, so that it is made of a read and a write.
        path = f"/storage/v1/b/{_part(bucket)}/o/{_part(old)}?alt=media"
        answer = self.front.http.request("GET", self.front.server + path)
        if answer.status != 200:
            return self._answer(answer.status, {}, answer.data)
        status, headers, text = self._write(bucket, name, answer.data)
        if status != 200:
            return self._answer(status, headers, text)
        self._xml("CopyObjectResult", "<ETag>x</ETag>", headers)

    def _write(self, bucket: str, name: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        query = {"uploadType": "media", "name": name}
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None:
            query["ifGenerationMatch"] = wanted
        url = f"{self.front.server}/upload/storage/v1/b/{_part(bucket)}/o?{urlencode(query)}"
        answer = self.front.http.request("POST", url, body=body)
        if answer.status != 200:
            return answer.status, {}, answer.data
        made = json.loads(answer.data)
        generation = str(made["generation"])
        return 200, {"ETag": f'"{made["etag"]}"', "x-goog-generation": generation}, b""

    def _pass_on(self) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() in _PASSED}
        answer = self.front.http.request(
            self.command, self.front.server + self.path, headers=headers, decode_content=False
        )
        dropped = ("transfer-encoding", "connection", "content-length", "date")
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in dropped}
        if self.command == "HEAD":
            kept["Content-Length"] = answer.headers.get("Content-Length", "0")
        self._answer(answer.status, kept, answer.data)

    def _target(self) -> tuple[str, str, dict[str, str]]:
        parts = urlsplit(self.path)
        bucket, _, name = parts.path.lstrip("/").partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        return unquote(bucket), unquote(name), {k: v[0] for k, v in query.items()}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _xml(self, name: str, inner: str, headers: Mapping[str, str]) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='{_NS}'>{inner}</{name}>"
        self._answer(200, {**headers, "Content-Type": "application/xml"}, text.encode())

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _part(name: str) -> str:
    return quote(name, safe="")
