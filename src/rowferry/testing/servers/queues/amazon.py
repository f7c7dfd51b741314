"""Amazon's queues, streams, Glue and S3, as moto has them."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any, ClassVar, Final

import urllib3

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.programs import PythonPackages
from rowferry.testing.servers.queues.queue_server import QueuedMessage, QueueServer

REGION: Final = "us-east-1"
_PROGRAM: Final = "rowferry.testing.servers.queues.moto_with_versions"
_VERSIONS: Final = (
    *("moto==5.2.5", "boto3==1.44.3", "botocore==1.44.3", "s3transfer==0.19.3"),
    *("jmespath==1.1.0", "python-dateutil==2.9.0.post0", "six==1.17.0", "responses==0.26.3"),
    *("xmltodict==1.0.4", "Flask==3.1.3", "flask-cors==6.0.5", "Werkzeug==3.1.9"),
    *("blinker==1.9.0", "itsdangerous==2.2.0"),
)
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(30))


class Amazon(QueueServer):
    """SQS, Kinesis, Glue and S3 on 127.0.0.1, in memory; every access key is taken."""

    fetched: ClassVar = PythonPackages("moto-5.2.5", _VERSIONS)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._read: dict[str, list[QueuedMessage]] = {}

    def command(self) -> list[str]:
        """Return the command that starts it."""
        return [sys.executable, "-m", _PROGRAM, "-H", HOST, "-p", str(self.port)]

    def environment(self) -> dict[str, str]:
        """Return its environment: any region is one, so that each test may have its own."""
        return {**self.fetched.environment(), "MOTO_ALLOW_NONEXISTENT_REGION": "true"}

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://{self.address}"

    def answers(self) -> bool:
        """Whether it lists queues."""
        try:
            self.ask("sqs", "AmazonSQS.ListQueues", {})
        except (SourceUnavailable, urllib3.exceptions.HTTPError):
            return False
        return True

    def ask(
        self, service: str, target: str, content: dict[str, Any], region: str = REGION
    ) -> dict[str, Any]:
        """Make a request.

        Raises:
            SourceUnavailable: it is refused.
        """
        scope = f"Credential=test/20260101/{region}/{service}/aws4_request"
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": target,
            "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
        }
        body = json.dumps(content).encode()
        answer = _http.request("POST", self.endpoint + "/", body=body, headers=headers)
        if answer.status != 200:
            raise SourceUnavailable(f"{target}: {answer.status} {answer.data.decode()[:300]}")
        return dict(json.loads(answer.data or b"{}"))

    def make_bucket(self, name: str) -> None:
        """Make a bucket of S3.

        Raises:
            SourceUnavailable: it is refused.
        """
        answer = _http.request("PUT", f"{self.endpoint}/{name}")
        if answer.status != 200:
            raise SourceUnavailable(f"bucket {name}: {answer.status} {answer.data.decode()[:300]}")

    def read_all(self, topic: str) -> list[QueuedMessage]:
        """Return every message of a topic: of its stream, if there is one, else of its queue."""
        if self._is_stream(topic):
            return self._read_stream(topic)
        return self._read_queue(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a stream or a queue, as an operator would."""
        if self._is_stream(topic):
            self.ask("kinesis", "Kinesis_20131202.DeleteStream", {"StreamName": topic})
        else:
            self.ask("sqs", "AmazonSQS.DeleteQueue", {"QueueUrl": self._queue(topic)})

    def _is_stream(self, topic: str) -> bool:
        try:
            self.ask("kinesis", "Kinesis_20131202.DescribeStreamSummary", {"StreamName": topic})
        except SourceUnavailable:
            return False
        return True

    def _queue(self, topic: str) -> str:
        answered = self.ask("sqs", "AmazonSQS.GetQueueUrl", {"QueueName": f"{topic}.fifo"})
        return str(answered["QueueUrl"])

    def _read_queue(self, topic: str) -> list[QueuedMessage]:
        """Take every message out, and remember it: while one is read, its group waits."""
        try:
            url = self._queue(topic)
        except SourceUnavailable:
            return []
        messages = self._read.setdefault(topic, [])
        about = {"MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
        while received := self.ask(
            "sqs",
            "AmazonSQS.ReceiveMessage",
            {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 600, **about},
        ).get("Messages"):
            for message in received:
                messages.append(_of_queue(message))
                content = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
                self.ask("sqs", "AmazonSQS.DeleteMessage", content)
        return list(messages)

    def _read_stream(self, topic: str) -> list[QueuedMessage]:
        messages: list[QueuedMessage] = []
        lead = "Kinesis_20131202"
        shards = self.ask("kinesis", f"{lead}.ListShards", {"StreamName": topic})["Shards"]
        for partition, shard in enumerate(shards):
            place = {"StreamName": topic, "ShardId": shard["ShardId"]}
            begin = {**place, "ShardIteratorType": "TRIM_HORIZON"}
            at = self.ask("kinesis", f"{lead}.GetShardIterator", begin)["ShardIterator"]
            while True:
                answered = self.ask("kinesis", f"{lead}.GetRecords", {"ShardIterator": at})
                for record in answered["Records"]:
                    value = base64.b64decode(record["Data"])
                    messages.append(QueuedMessage(partition, None, value, record["PartitionKey"]))
                if not answered["Records"]:
                    break
                at = answered["NextShardIterator"]
        return messages


def _of_queue(message: dict[str, Any]) -> QueuedMessage:
    about = message.get("MessageAttributes") or {}
    value: bytes | None = message["Body"].encode()
    if "rowferry-encoding" in about:
        value = base64.b64decode(message["Body"])
    if "rowferry-no-value" in about:
        value = None
    key = about.get("rowferry-key")
    partition = int(message["Attributes"]["MessageGroupId"])
    known = None if key is None else base64.b64decode(key["BinaryValue"])
    return QueuedMessage(partition, known, value, about["rowferry-id"]["StringValue"])
