"""What sinks of Amazon's queues and streams do alike: their URI, how a batch is tried again."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Generic, TypeVar

from rowferry.errors import SinkUnavailable
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.queue.amazon import AmazonClient, AmazonError, AmazonOptions, is_for_now
from rowferry.flow.sink.queue.service import LaneName
from rowferry.flow.sink.queue.service_sink import ServiceSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri_form import UriPart

REGION: Final = UriPart("Region", "eu-central-1")
OptionsT = TypeVar("OptionsT", bound=AmazonOptions)


class AmazonSink(ServiceSink, Generic[OptionsT]):
    """Messages in a service of Amazon.

    Attributes:
        OPTIONS: its options.
        HOST: the service as signatures and hosts name it.
        LEAD: what stands before the name of an action.
    """

    # Message groups are names, and partitions are hash keys, which stay where shards are merged.
    loses_partitions: ClassVar[bool] = True
    OPTIONS: type[OptionsT]
    HOST: ClassVar[str]
    LEAD: ClassVar[str]

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        """Read the options; opens no connection.

        Raises:
            BadUri: the URI names no topic, or no region.
            OptionsConflict, BadDispatchRule: an option or a rule cannot be used.
        """
        self._options = spec.options(self.OPTIONS)
        self._client = AmazonClient(spec, self._options, self.HOST, self.LEAD)
        super().__init__(spec, codec, self._options, self._client.at)


class AmazonTopics(Generic[OptionsT]):
    """The queues or streams of one region: what is the same for both; see `QueueService`."""

    width = 8
    missing: ClassVar[str]  # in the code of an error: there is no such topic

    def __init__(self, client: AmazonClient, options: OptionsT) -> None:
        self._client, self._options = client, options
        self.cluster = ""

    def stored(self, lane: LaneName) -> int:
        """Return 0: nobody can tell what is there."""
        return 0

    def close(self) -> None:
        """Let connections go."""
        self._client.close()

    def _sent(self, action: str, content: dict[str, Any], doing: str) -> dict[str, Any] | str:
        """Send a batch; return the answer, or why nothing of it is stored for now.

        Raises:
            SinkUnavailable: the topic is missing, or nobody answers.
            SinkUnwritable: it is refused.
        """
        try:
            return self._client.call(action, content)
        except AmazonError as err:
            if err.status >= 500 or is_for_now(err.code):
                return str(err)
            if self.missing in err.code:
                raise SinkUnavailable(f"{self._client.at}, {doing}: {err}") from None
            raise self._client.error(err, doing) from None
