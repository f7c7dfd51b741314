"""A server that speaks MySQL's protocol as far as it suits it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

FULL = 0xFFFFFF
OK = b"\0\0\0\2\0\0\0"
EOF = b"\xfe\0\0\2\0"
GREETING = (
    b"\x0a8.4.0-rogue\0"
    + struct.pack("<I", 7)
    + b"12345678\0"
    + struct.pack("<HBHHB", 0xF7DF, 45, 2, 0x0008, 21)
    + bytes(10)
    + b"123456789012\0"
    + b"mysql_native_password\0"
)

Answer = Iterator[bytes] | Sequence[bytes]  # raw bytes, as they go to the client
Answers = Callable[[bytes], Answer]  # by the command


def packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number & 255]) + payload


def packets(*payloads: bytes, first: int = 1) -> bytes:
    return b"".join(packet(first + i, p) for i, p in enumerate(payloads))


def text(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def column(name: bytes = b"c") -> bytes:
    parts = (b"def", b"", b"t", b"t", name, name)
    end = struct.pack("<HIBHB", 45, 1024, 253, 0, 0) + b"\0\0"
    return b"".join(map(text, parts)) + b"\x0c" + end


def result(*rows: Sequence[bytes]) -> bytes:
    """Return a whole result set."""
    columns = [column() for _ in rows[0]]
    lines = [b"".join(map(text, row)) for row in rows]
    return packets(bytes([len(columns)]), *columns, EOF, *lines, EOF)


def honest(command: bytes) -> Answer:
    """Answer what a client asks when it connects."""
    sql = command[1:].upper()
    if command[:1] != b"\x03" or sql.startswith(b"SET"):
        return [packets(OK)]
    if b"TIDB_VERSION" in sql:
        return [packets(b"\xff" + struct.pack("<H", 1305) + b"#42000no such function")]
    if b"BINLOG_CHECKSUM" in sql:
        return [result([b"NONE", b"8.4.0"])]
    if b"SERVER_UUID" in sql:
        return [result([b"uuid"])]
    if b"VERSION()" in sql:
        return [result([b"8.4.0", b"67108864"])]
    return [result([b"1"])]


@dataclass
class Rogue:
    """What a running one has: where it listens, and how much it could send."""

    port: int
    sent: int = 0
    commands: list[bytes] = field(default_factory=list)


@contextmanager
def rogue(answers: Answers = honest, greeting: bytes = packet(0, GREETING)) -> Iterator[Rogue]:
    """Serve connections until the block ends; a client that goes away ends its answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    found = Rogue(listener.getsockname()[1])
    threads: list[threading.Thread] = []

    def serve(client: socket.socket) -> None:
        with client:
            try:
                _talk(client, greeting, answers, found)
            except OSError:
                pass

    def listen() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.settimeout(20)
            threads.append(threading.Thread(target=serve, args=(client,)))
            threads[-1].start()

    door = threading.Thread(target=listen)
    door.start()
    try:
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        door.join()
        for thread in threads:
            thread.join()


def _talk(client: socket.socket, greeting: bytes, answers: Answers, found: Rogue) -> None:
    client.sendall(greeting)
    stream = client.makefile("rb")
    _read(stream)  # the login
    client.sendall(packet(2, OK))
    while command := _read(stream):
        found.commands.append(command)
        for part in answers(command):
            client.sendall(part)
            found.sent += len(part)


def _read(stream: socket.SocketIO | object) -> bytes:
    head = stream.read(4)  # type: ignore[union-attr]
    if len(head) < 4:
        return b""
    return bytes(stream.read(int.from_bytes(head[:3], "little")))  # type: ignore[union-attr]
