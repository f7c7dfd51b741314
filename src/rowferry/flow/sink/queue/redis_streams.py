"""Redis Streams as a sink: a stream for each partition of a topic, `topic:partition`.

Beside each stream stands a small hash, `rowferry:{topic:partition}`. It tells how far each
changefeed has come there, and with which epoch. A script reads it, adds what is missing and moves
it on, in one step of the server: so a replay adds nothing, and a process that was replaced is
refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    RedisError,
    ResponseError,
)

from rowferry.errors import (
    BadUri,
    Fenced,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
)
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import SinkTraits
from rowferry.flow.sink.queue.service import Batch, LaneName
from rowferry.flow.sink.queue.service_sink import (
    QueueOptions,
    ServiceSink,
    certificate,
    private_key,
    queue_traits,
    refuse_half,
)
from rowferry.flow.sink.web_calls import on_one_line
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, duration, flag, option, text, whole
from rowferry.spec.uri_form import UriPart

_PORT: Final = 6379
_LANES: Final = 4  # that are sent side by side
_FENCED, _GONE = "ROWFERRYFENCED", "ROWFERRYGONE"
# What passes: a server that starts, changes its role, is full, or lacks replicas for a while.
_FOR_NOW: Final = (
    *("LOADING", "BUSY", "READONLY", "MASTERDOWN", "OOM", "MISCONF", "NOREPLICAS", "TRYAGAIN"),
    *("CLUSTERDOWN", "UNBLOCKED", _GONE),
)
# Keys: the stream, its note. Arguments: the writer, its epoch, the run, the place of the first
# message, the most entries (0: all stay), then id, key and value of each; "-" before what is there.
_APPEND: Final = """
local stream, note = KEYS[1], KEYS[2]
local writer, epoch, run = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local kept = tonumber(redis.call('HGET', note, 'epoch:' .. writer) or '0')
if kept > epoch then
  return redis.error_reply('ROWFERRYFENCED ' .. kept)
end
if redis.call('TYPE', stream).ok == 'none' then
  return redis.error_reply('ROWFERRYGONE ' .. stream)
end
local place, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local at = redis.call('HGET', note, 'at:' .. writer) or ''
local stored = 0
if string.sub(at, 1, #run + 1) == run .. ' ' then
  stored = tonumber(string.sub(at, #run + 2))
end
for n = 6, #ARGV, 3 do
  if place >= stored then
    local entry = {'id', ARGV[n]}
    for m, name in ipairs({'key', 'value'}) do
      local given = ARGV[n + m]
      if given ~= '' then
        entry[#entry + 1] = name
        entry[#entry + 1] = string.sub(given, 2)
      end
    end
    redis.call('XADD', stream, '*', unpack(entry))
  end
  place = place + 1
end
if most > 0 then
  redis.call('XTRIM', stream, 'MAXLEN', '~', most)
end
-- Also where nothing was missing: replicas can be waited for only behind a write.
local far = math.max(place, stored)
redis.call('HSET', note, 'epoch:' .. writer, epoch, 'at:' .. writer, run .. ' ' .. far)
return place
"""


class RedisOptions(QueueOptions, section="sink.redis-config"):
    """The options of the Redis sink."""

    database = option(whole(0, 65535), 0, "The number of the database.", uri=True)
    stream_max_length = option(
        whole(0),
        0,
        "How many entries a stream keeps, about; older ones are removed. 0: all stay.",
        uri=True,
    )
    wait_replicas = option(
        whole(0, 100),
        0,
        "How many replicas must have a batch before it counts as stored (WAIT).",
        uri=True,
    )
    timeout = option(
        duration(timedelta(milliseconds=1)),
        timedelta(seconds=10),
        "To connect, and to wait for an answer.",
        uri=True,
    )
    ca = option(
        text(), "", "File of the authorities that signed the server.", uri=True, names="path"
    )
    cert = certificate()
    key = private_key()
    insecure_skip_verify = option(flag(), False, "Trust any server: for tests only.", uri=True)


class RedisSink(ServiceSink):
    """Entries in streams of Redis, or of a server that speaks its protocol."""

    SERVICE = "Redis"
    TRAITS: ClassVar[SinkTraits] = queue_traits(
        "Redis Streams", "sink.redis-config", UriPart("Host and port", "redis.example:6379")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (RedisOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        """Read the options; opens no connection.

        Raises:
            BadUri: the URI names no topic, or not one server.
            OptionsConflict, BadDispatchRule: an option or a rule cannot be used.
        """
        options = spec.options(RedisOptions)
        refuse_half(options.cert, options.key)
        parts = urlsplit(f"//{spec.sink.address}")
        if not parts.hostname or "," in spec.sink.address:
            raise BadUri("the sink URI must name one server; write it as redis://host:6379/topic")
        self._options = options
        self._address = parts.hostname, parts.port or _PORT
        self._login = spec.sink.user or None, spec.sink.password or None
        self._encrypted = spec.sink.scheme.endswith("+ssl")
        super().__init__(spec, codec, options, f"{parts.hostname}:{parts.port or _PORT}")

    def _connect(self) -> RedisStreams:
        options = self._options
        host, port = self._address
        user, password = self._login
        tls: dict[str, Any] = {}
        if self._encrypted:
            tls = {
                "ssl": True,
                "ssl_ca_certs": options.ca or None,
                "ssl_certfile": options.cert or None,
                "ssl_keyfile": options.key or None,
                "ssl_cert_reqs": "none" if options.insecure_skip_verify else "required",
                "ssl_check_hostname": not options.insecure_skip_verify,
            }
        wait_s = options.timeout.total_seconds()
        client = redis.Redis(
            host=host,
            port=port,
            db=options.database,
            username=user,
            password=password,
            socket_timeout=wait_s,
            socket_connect_timeout=wait_s,
            client_name="rowferry",
            **tls,
        )
        return RedisStreams(client, options, self._at)


class RedisStreams:
    """A connection to one server; see `QueueService`."""

    most_messages: ClassVar[int] = 500
    most_bytes: ClassVar[int] = 1 << 20
    message_bytes: ClassVar[int] = 0
    width = _LANES

    def __init__(self, client: redis.Redis, options: RedisOptions, at: str) -> None:
        self._client, self._options, self._at = client, options, at
        self._script = client.register_script(_APPEND)
        self.cluster = ""

    # --- topics ----------------------------------------------------------------------------------

    def partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return those of these topics that are there, with their partition counts."""
        known = {topic: self._count(topic) for topic in wanted}
        return {topic: count for topic, count in known.items() if count}

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return what topics that were made here were called by then; "": others made it."""
        known: dict[str, str | None] = {}
        for topic in topics:
            moment("ask for a topic's id")
            with self._translated("asking for a topic"):
                kept = self._client.hget(_note(topic), "id")
            known[topic] = _text(kept) if self._count(topic) else None
        return known

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a message may be: as the options say."""
        return dict.fromkeys(topics, self._options.max_message_bytes)

    def create(self, wanted: Mapping[str, int]) -> None:
        """Make topics, each with its streams; those that are there already stay as they are."""
        for topic, partitions in wanted.items():
            made = {"id": secrets.token_hex(8), "partitions": str(partitions)}
            moment("create streams")
            with self._translated(f"creating topic {topic}"):
                for field, value in made.items():
                    self._client.hsetnx(_note(topic), field, value)
                for number in range(partitions):
                    self._make(_stream(topic, number))

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Ask whether topics could be made; makes none."""
        self.check_write(wanted)

    def check_write(self, topics: Iterable[str]) -> None:
        """Add to streams that are not there, which changes nothing, to learn of the rights."""
        for topic in topics:
            nowhere = f"{_stream(topic, 0)}:{secrets.token_hex(8)}"
            moment("ask for the right to write")
            with self._translated(f"asking for the right to write to topic {topic}"):
                self._client.xadd(nowhere, {"id": ""}, nomkstream=True)

    # --- messages --------------------------------------------------------------------------------

    def stored(self, lane: LaneName) -> int:
        """Return how many of a lane's messages are there; 0 where replicas may lack some of them.

        Those go to the script again, which adds nothing twice, and replicas are waited for again.
        """
        if self._options.wait_replicas:
            return 0
        name = _note(_stream(lane.topic, lane.partition))
        moment("ask how far a stream is")
        with self._translated("asking for a stream"):
            at = _text(self._client.hget(name, f"at:{lane.writer}"))
        run, _, place = at.rpartition(" ")
        return int(place) if run == lane.run else 0

    def send(self, batch: Batch) -> None:
        """Add a batch in one step of the server."""
        lane = batch.lane
        name = _stream(lane.topic, lane.partition)
        most, wait = self._options.stream_max_length, self._options.timeout.total_seconds()
        arguments: list[Any] = [lane.writer, lane.epoch, lane.run, batch.first, most]
        for message_id, key, value in zip(batch.ids(), batch.keys, batch.values, strict=True):
            arguments += [message_id, _given(key), _given(value)]
        replicas = self._options.wait_replicas
        steps: Any = self._client.pipeline(transaction=False)
        self._script(keys=[name, _note(name)], args=arguments, client=steps)
        if replicas:
            # The server's answer must come before we give up: it says what is wrong.
            steps.execute_command("WAIT", replicas, max(round(wait * 500), 1))
        moment("add to a stream")
        with self._translated(f"sending to {lane.topic} partition {lane.partition}"):
            answers = steps.execute()
        moment("added to a stream")
        if replicas and int(answers[-1]) < replicas:
            raise SinkUnavailable(
                f"{self._at}: {answers[-1]} replicas have what was sent, and wait-replicas is "
                f"{replicas}; start them, or lower it"
            )

    def close(self) -> None:
        """Let connections go."""
        self._client.close()

    # --- pieces ----------------------------------------------------------------------------------

    def _count(self, topic: str) -> int:
        """Return how many streams a topic has; 0: one is missing, or all are."""
        moment("ask for a topic's streams")
        with self._translated("asking for a topic"):
            count = int(_text(self._client.hget(_note(topic), "partitions")) or 0)
            if count:
                there = [self._client.exists(_stream(topic, n)) for n in range(count)]
                return count if all(there) else 0
            while self._client.exists(_stream(topic, count)):  # others have made them
                count += 1
        return count

    def _make(self, name: str) -> None:
        """Make an empty stream; one that is there stays as it is."""
        group = f"rowferry-{secrets.token_hex(8)}"
        self._client.xgroup_create(name, group, "$", mkstream=True)
        self._client.xgroup_destroy(name, group)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as err:
            raise self._error(err, doing) from None

    def _error(self, err: Exception, doing: str) -> RowferryError:
        reason = on_one_line(str(err))
        words = f"{self._at}, {doing}: {reason}"
        if _FENCED in reason:
            return Fenced(f"{words}: another process of this changefeed has sent there; stop this")
        if isinstance(err, AuthenticationError | AuthorizationError):
            return SinkUnwritable(f"{words}; correct user and password in the sink URI")
        if "certificate" in reason.lower():
            return SinkUnwritable(f"{words}; correct ca, cert or key")
        if isinstance(err, ResponseError) and not any(word in reason for word in _FOR_NOW):
            return SinkUnwritable(f"{words}; correct the login, its rights or the option")
        if isinstance(err, ResponseError):
            return SinkUnavailable(words)
        return SinkUnavailable(f"{words}; start the server, or correct host and port in the URI")


def _stream(topic: str, partition: int) -> str:
    return f"{topic}:{partition}"


def _note(name: str) -> str:
    """Return the key of what is known about a topic or a stream; a cluster keeps both together."""
    return f"rowferry:{{{name}}}"


def _given(content: bytes | None) -> bytes:
    return b"" if content is None else b"-" + content


def _text(answer: Any) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer or "")
