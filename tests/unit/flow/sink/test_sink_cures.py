"""What helps stands in the words of an error that a person will meet on the first day."""

from __future__ import annotations

import errno

import pytest
from confluent_kafka import KafkaError

from rowferry.flow.sink.kafka.client import as_error
from rowferry.flow.sink.storage import local_files, object_files
from rowferry.mysql.refusals import refusal_of_number
from rowferry.mysql.session import Login, as_ours, lasting


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free space on that disk"),
        (errno.EDQUOT, "raise the quota"),
        (errno.EACCES, "let this user write there"),
        (errno.EROFS, "mount it writable"),
    ],
)
def test_a_disk_that_is_full_or_shut(number: int, words: str) -> None:
    assert words in local_files._ours(OSError(number, "said"), "/out/x").words


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("404 Not Found: <Code>NoSuchBucket</Code>", "create the bucket"),
        ("403 Forbidden: <Code>InvalidAccessKeyId</Code>", "correct access-key"),
        ("403 Forbidden: <Code>AccessDenied</Code>", "give this key the rights"),
        ("error sending request for url (http://169.254.169.254/latest)", "no credentials were"),
        ("error sending request: dns error", "correct the endpoint"),
    ],
)
def test_an_object_store_that_says_no(said: str, words: str) -> None:
    assert words in object_files._ours(Exception(said), "s3://b/x").words


def test_brokers_and_servers_that_are_away() -> None:
    told = as_error(KafkaError(KafkaError._TRANSPORT), "asking for topics")
    assert "correct host and port in the sink URI" in told.words
    login = Login("nowhere.invalid", 3306, "root", "")
    away = refusal_of_number(2003, "Can't connect")
    assert "correct host and port in the URI" in as_ours(away, login).words


def test_a_cure_on_the_server_is_also_one_for_its_file() -> None:
    assert lasting("SET GLOBAL binlog_format = ROW") == (
        "SET GLOBAL binlog_format = ROW (to keep it after a restart: binlog_format = ROW below "
        "[mysqld] in the server's file)"
    )
