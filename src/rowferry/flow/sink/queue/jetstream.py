"""NATS JetStream as a sink: a stream for each partition of a topic, with one subject.

The stream of partition 2 of `orders` is `orders-2`, its subject `orders.2`. Each message says which
sequence number must be the last one before it. So a stream has no gaps, and of two processes that
send to it at once one is refused. Whoever begins looks at the last message: it tells how far a
replay has come, and whether a newer process was there.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as LateAnswer
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from rowferry.errors import (
    BadOption,
    BadUri,
    Fenced,
    MessageTooLarge,
    OptionsConflict,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
    TopicRefused,
)
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import SinkTraits
from rowferry.flow.sink.queue.service import MARKS, ROWS, Batch, LaneName
from rowferry.flow.sink.queue.service_sink import (
    QueueOptions,
    ServiceSink,
    certificate,
    private_key,
    queue_traits,
    refuse_half,
)
from rowferry.flow.sink.web_calls import TlsFiles, on_one_line
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, duration, flag, option, text, whole
from rowferry.spec.uri_form import UriPart

T = TypeVar("T")
KEY, EPOCH, NO_VALUE = "Rowferry-Key", "Rowferry-Epoch", "Rowferry-No-Value"
_ID, _LAST, _STREAM = "Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Expected-Stream"
_OVERHEAD: Final = 4096  # bytes of headers, at most
_NOT_LAST: Final = 10071  # what JetStream calls it that another message came between
_LIMITS: Final = frozenset({10047, 10077, 10122})  # of a stream or the server's storage
_TOO_LARGE: Final = 10054  # a message is longer than its stream takes
_FOR_NOW: Final = 500  # a status from here on is about the server, not about what was asked
_REFUSALS: Final = ("authorization", "permission", "authentication", "nkey", "jwt")


class NatsOptions(QueueOptions, section="sink.nats-config"):
    """The options of the NATS sink."""

    replicas = option(
        whole(1, 5), 1, "On how many servers a stream that is created is kept.", uri=True
    )
    duplicate_window = option(
        duration(timedelta(milliseconds=100)),
        timedelta(minutes=2),
        "How long a stream that is created knows message ids. Repeats are known by the last "
        "message as well, whenever it came.",
        uri=True,
    )
    timeout = option(
        duration(timedelta(milliseconds=1)),
        timedelta(seconds=10),
        "To connect, and to wait until messages are stored.",
        uri=True,
    )
    token = option(text(), "", "A token to log in with.", secret=True)
    credentials_file = option(
        text(), "", "A file of credentials: a user's JWT and its key.", uri=True, names="path"
    )
    ca = option(
        text(), "", "File of the authorities that signed the servers.", uri=True, names="path"
    )
    cert = certificate()
    key = private_key()
    insecure_skip_verify = option(flag(), False, "Trust any server: for tests only.", uri=True)


class NatsSink(ServiceSink):
    """Messages in streams of JetStream."""

    SERVICE = "NATS"
    TRAITS: ClassVar[SinkTraits] = queue_traits(
        "NATS JetStream", "sink.nats-config", UriPart("Servers", "nats-1:4222,nats-2:4222")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (NatsOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        """Read the options; opens no connection.

        Raises:
            BadUri: the URI names no topic, or no server.
            BadOption, OptionsConflict, BadDispatchRule: an option or a rule cannot be used.
        """
        options = spec.options(NatsOptions)
        uri = spec.sink
        if not uri.address:
            raise BadUri("the sink URI names no server; write it as nats://host:4222/topic")
        refuse_half(options.cert, options.key)
        logins = {
            "the URI's user": uri.user,
            "token": options.token,
            "credentials-file": options.credentials_file,
        }
        given = [name for name, value in logins.items() if value]
        if len(given) > 1:
            raise OptionsConflict(f"{' and '.join(given)} are each a way to log in; keep one")
        self._settings: dict[str, Any] = {
            "servers": [
                f"{'tls' if uri.scheme.endswith('+ssl') else 'nats'}://{one}"
                for one in uri.address.split(",")
            ],
            "user": uri.user or None,
            "password": uri.password or None,
            "token": options.token or None,
            "user_credentials": options.credentials_file or None,
        }
        if uri.scheme.endswith("+ssl"):
            files = TlsFiles(
                options.ca, options.cert, options.key, not options.insecure_skip_verify
            )
            try:
                self._settings["tls"] = files.context()
            except (OSError, ssl.SSLError) as err:
                raise BadOption(
                    f"ca, cert or key of [sink.nats-config] cannot be used: {files.shown}: "
                    f"{on_one_line(str(err))}"
                ) from None
        self._options = options
        super().__init__(spec, codec, options, uri.address)

    def _connect(self) -> JetStreams:
        return JetStreams(self._settings, self._options, self._at)


class JetStreams:
    """A connection to one server; see `QueueService`. Its work is done by a thread of its own."""

    most_messages: ClassVar[int] = 1000
    most_bytes: ClassVar[int] = 1 << 20
    message_bytes: ClassVar[int] = 256
    width = 4

    def __init__(self, settings: Mapping[str, Any], options: NatsOptions, at: str) -> None:
        self._settings, self._options, self._at = settings, options, at
        self._wait_s = options.timeout.total_seconds()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, about: None)  # who waits is told
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._guard = threading.Lock()
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._unsent: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._inbox, self._count = "", 0
        self._lost = ""  # what the library said when the connection ended
        self._last: dict[str, int] = {}  # sequence numbers of streams' last messages
        self.cluster = ""

    # --- topics ----------------------------------------------------------------------------------

    def partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return those of these topics that are there, with their partition counts."""
        counts = {topic: sum(1 for _ in self._streams(topic)) for topic in wanted}
        return {topic: count for topic, count in counts.items() if count}

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return when the first stream of each topic was made."""
        made_at: dict[str, str | None] = {}
        for topic in topics:
            info = self._info(topic, 0)
            made_at[topic] = None if info is None else str(info.created or "")
        return made_at

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a message may be: as the options say, the server or the streams."""
        self._connection()
        allowed = self._client.max_payload if self._client else 0
        limits = {}
        for topic in topics:
            asked = (info.config.max_msg_size for info in self._streams(topic))
            fitting = [_without_headers(size) for size in asked if size is not None and size >= 0]
            most = min(self._options.max_message_bytes, allowed - _OVERHEAD, *fitting)
            limits[topic] = max(most, 1)
        return limits

    def create(self, wanted: Mapping[str, int]) -> None:
        """Make streams; those that are there already stay as they are.

        Raises:
            TopicRefused: the server refuses one, with its words.
        """
        self.check_create(wanted)
        for topic, partitions in wanted.items():
            for number in range(partitions):
                if self._info(topic, number) is not None:
                    continue
                config = StreamConfig(
                    name=_stream(topic, number),
                    description=f"changes: topic {topic}, partition {number}",
                    subjects=[_subject(topic, number)],
                    retention=RetentionPolicy.LIMITS,
                    storage=StorageType.FILE,
                    num_replicas=self._options.replicas,
                    duplicate_window=self._options.duplicate_window.total_seconds(),
                )
                js = self._connection()
                moment("create a stream")
                try:
                    self._run(js.add_stream(config), f"creating stream {config.name}")
                except SinkUnwritable as err:
                    raise TopicRefused(f"topic {topic!r} cannot be created: {err}") from None
                moment("stream created")

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Refuse names that no subject can have; makes nothing.

        Raises:
            TopicRefused: a topic's name is no subject.
        """
        for topic in wanted:
            if not all(topic.split(".")):
                raise TopicRefused(
                    f"topic {topic!r} cannot be created: a subject has no empty part between dots"
                )
        self._connection()

    def check_write(self, topics: Iterable[str]) -> None:
        """A server tells of rights only when something is sent: see that it is there."""
        self._connection()

    # --- messages --------------------------------------------------------------------------------

    def stored(self, lane: LaneName) -> int:
        """Return how many of a lane's messages are there, by the last one of its stream."""
        name, headers = _stream(lane.topic, lane.partition), self._newest(lane)
        if headers is None:
            return 0
        last_id = headers.get(_ID, "")
        epoch = headers.get(EPOCH, "")
        own = last_id.startswith((f"{lane.changefeed}:{ROWS}:", f"{lane.changefeed}:{MARKS}:"))
        if own and epoch.isdigit() and int(epoch) > lane.epoch:
            raise Fenced(
                f"{self._at}, stream {name}: another process of this changefeed has sent there, "
                f"with epoch {epoch}; this process has {lane.epoch}"
            )
        if lane.kind == ROWS and last_id.startswith(f"{lane.changefeed}:{MARKS}:{lane.run}:"):
            return sys.maxsize  # what follows the rows is there, so they are
        place = lane.place_of(last_id)
        return 0 if place is None else place + 1

    def send(self, batch: Batch) -> None:
        """Send a batch without waiting between its messages, then wait for all answers."""
        lane = batch.lane
        name = _stream(lane.topic, lane.partition)
        if name not in self._last:
            self._newest(lane)
        self._connection()
        moment("send to a stream")
        done = self._run(self._publish(batch, self._last[name]), f"sending to stream {name}")
        moment("sent to a stream")
        if done < len(batch.values):
            # Some were known already, so that those behind them had to be refused.
            self._newest(lane)
            self.send(batch.behind(done))

    def close(self) -> None:
        """Let the connection go."""
        if self._loop.is_closed():
            return
        if self._client is not None:
            moment("close the server's connection")
            with suppress(RowferryError):
                self._run(self._leave(self._client), "closing")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- pieces ----------------------------------------------------------------------------------

    def _connection(self) -> JetStreamContext:
        with self._guard:
            if self._js is None:
                moment("connect to NATS")
                self._js = self._run(self._open(), "connecting")
            return self._js

    async def _open(self) -> JetStreamContext:
        async def note(err: Exception) -> None:
            self._lost = on_one_line(str(err))

        async def ended() -> None:
            for future in self._unsent.values():
                if not future.done():
                    future.set_exception(ConnectionError(self._lost or "the connection ended"))

        self._client = Client()  # before it connects: one that fails must be closed, too
        await self._client.connect(
            **self._settings,
            name="rowferry",
            allow_reconnect=False,
            connect_timeout=max(1, round(self._wait_s)),
            error_cb=note,
            closed_cb=ended,
            disconnected_cb=ended,
            skip_subject_validation=True,
        )
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._take)
        return self._client.jetstream(timeout=self._wait_s)

    async def _leave(self, client: Client) -> None:
        await client.close()
        transport = getattr(client, "_transport", None)  # one that never got a greeting stays open
        if transport is not None:
            transport.close()
        await asyncio.sleep(0.01)  # closing is done by the loop

    async def _take(self, message: Msg) -> None:
        """Take the answer to a message in."""
        future = self._unsent.pop(message.subject.rpartition(".")[2], None)
        if future is None or future.done():
            return
        if not message.data:
            future.set_exception(ConnectionError("no stream takes this subject"))
            return
        future.set_result(json.loads(message.data))

    async def _publish(self, batch: Batch, last: int) -> int:
        """Send messages behind a sequence number; return how many are stored, from the first."""
        client = self._client
        if client is None or client.is_closed:
            raise ConnectionError(self._lost or "the connection ended")
        lane = batch.lane
        name, subject = (f(lane.topic, lane.partition) for f in (_stream, _subject))
        futures = []
        for place, (message_id, key, value) in enumerate(
            zip(batch.ids(), batch.keys, batch.values, strict=True)
        ):
            headers = {
                _ID: message_id,
                _LAST: str(last + place),
                _STREAM: name,
                EPOCH: str(lane.epoch),
            }
            if key is not None:
                headers[KEY] = base64.b64encode(key).decode()
            if value is None:
                headers[NO_VALUE] = "true"
            self._count += 1
            token = str(self._count)
            future = self._loop.create_future()
            self._unsent[token] = future
            futures.append(future)
            reply = f"{self._inbox}.{token}"
            await client.publish(subject, value or b"", reply=reply, headers=headers)
        try:
            answers = await asyncio.wait_for(
                asyncio.gather(*futures, return_exceptions=True), self._wait_s
            )
        except TimeoutError:
            raise ConnectionError("the server took too long") from None
        return self._judge(name, answers)

    def _judge(self, name: str, answers: list[Any]) -> int:
        """Return how many messages are stored, from the first; know the last one's number."""
        for place, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                raise answer
            if "error" in answer:
                if place and answer["error"].get("err_code") == _NOT_LAST:
                    return place
                raise _Refused(answer["error"])
            if not answer.get("duplicate"):
                self._last[name] = int(answer["seq"])
        return len(answers)

    def _newest(self, lane: LaneName) -> Mapping[str, str] | None:
        """Return the headers of the last message of a lane's stream, and know its number."""
        name = _stream(lane.topic, lane.partition)
        info = self._info(lane.topic, lane.partition)
        if info is None:
            raise SinkUnavailable(f"{self._at}: there is no stream {name}")
        self._last[name] = info.state.last_seq
        if not info.state.messages:
            return None
        js = self._connection()
        moment("ask for the last message")
        try:
            message = self._run(js.get_msg(name, seq=info.state.last_seq), f"reading stream {name}")
        except _Missing:
            return None  # it was deleted
        return message.headers or {}

    def _streams(self, topic: str) -> Iterator[StreamInfo]:
        """Yield a topic's streams that are there, partition by partition."""
        for number in itertools.count():
            info = self._info(topic, number)
            if info is None:
                return
            yield info

    def _info(self, topic: str, partition: int) -> StreamInfo | None:
        """Return what a stream is; None: there is none."""
        js = self._connection()
        name = _stream(topic, partition)
        moment("ask for a stream")
        try:
            info = self._run(js.stream_info(name), f"asking for stream {name}")
        except _Missing:
            return None
        if info.config.subjects != [_subject(topic, partition)]:
            raise TopicRefused(
                f"{self._at}: stream {name} has the subjects {info.config.subjects}, and topic "
                f"{topic} needs one with {_subject(topic, partition)} alone; name another topic"
            )
        return info

    def _run(self, work: Coroutine[Any, Any, T], doing: str) -> T:
        """Have the thread do something, and wait; its errors are ours."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return future.result(3 * self._wait_s + 5)
        except NotFoundError:
            raise _Missing(f"{self._at}, {doing}: not found") from None
        except RowferryError:
            raise
        except _Refused as err:
            raise self._refusal(err.words, err.code, err.status, doing) from None
        except APIError as err:
            words, code = str(err.description or err), int(err.err_code or 0)
            status = 503 if isinstance(err, ServiceUnavailableError) else int(err.code or 0)
            raise self._refusal(words, code, status, doing) from None
        except (NatsError, OSError, LateAnswer, ValueError) as err:
            words = on_one_line(str(err) or type(err).__name__)
            if self._lost and self._lost not in words:
                words = f"{words} ({self._lost})"
            if "certificate" in words.lower():
                raise SinkUnwritable(f"{self._at}, {doing}: {words}; correct ca") from None
            if any(word in words.lower() for word in _REFUSALS):
                raise SinkUnwritable(
                    f"{self._at}, {doing}: {words}; correct the login or its rights"
                ) from None
            raise SinkUnavailable(
                f"{self._at}, {doing}: {words}; start the servers, or correct host and port in "
                "the sink URI"
            ) from None

    def _refusal(self, words: str, code: int, status: int, doing: str) -> RowferryError:
        shown = f"{self._at}, {doing}: {on_one_line(words)}"
        if code == _NOT_LAST:
            return SinkUnavailable(f"{shown}: somebody else sends to this stream")
        if code == _TOO_LARGE:
            return MessageTooLarge(
                f"{shown}; raise max_msg_size of the stream, or set large-message-handle-option"
            )
        if code in _LIMITS or status >= _FOR_NOW:
            return SinkUnavailable(shown)
        return SinkUnwritable(f"{shown}; correct the stream or the option")


class _Missing(SinkUnavailable):
    """There is no such stream or message."""

    def __reduce__(self) -> Any:
        return SinkUnavailable, (str(self),)


class _Refused(Exception):
    """A server does not store a message."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__()
        self.words, self.code = str(error.get("description", "")), int(error.get("err_code", 0))
        self.status = int(error.get("code", 0))


def _stream(topic: str, partition: int) -> str:
    """Return the name of a stream, which has no dots."""
    return f"{topic.replace('.', '_')}-{partition}"


def _subject(topic: str, partition: int) -> str:
    return f"{topic}.{partition}"


def _without_headers(size: int) -> int:
    """Return how long a value may be where headers count, too: in small messages they are short."""
    return max(size - _OVERHEAD, size // 2)
