"""Settings on their way to tasks: their secrets are encrypted with a key of this process.

What a task is made of goes through Spark's memory, its temporary files and, where it is large, its
broadcasts. The key goes another way: it is in the environment of the processes that run tasks.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from rowferry.errors import EngineError
from rowferry.flow.assemble import secret_tables
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.sealing import SecretKeys, key_ids, opened, sealed

TASK_KEY: Final = "ROWFERRY_TASK_SECRET"  # Spark shows no setting with such a name
SETTING: Final = f"spark.executorEnv.{TASK_KEY}"
_TASK: Final = b"rowferry task"

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]


def key_setting(java_runs: bool) -> dict[str, str]:
    """Return the setting that gives tasks the key; call it before Java is started.

    Where Java runs already without it, there is none, and settings go to tasks as they are.
    """
    if TASK_KEY not in os.environ:
        if java_runs:
            return {}
        os.environ[TASK_KEY] = base64.b64encode(secrets.token_bytes(32)).decode()
    return {SETTING: os.environ[TASK_KEY]}


def keep_apart(context: SparkContext) -> None:
    """Take the key out of what Spark sends with each task: executors have it from their start."""
    context.environment.pop(TASK_KEY, None)


def has_key(conf: SparkConf) -> bool:
    """Return whether the tasks of a session have this process's key."""
    return bool(os.environ.get(TASK_KEY)) and conf.get(SETTING, "") == os.environ[TASK_KEY]


def is_key_here() -> bool:
    """Return whether this process has a key: one that Spark started, and all that run tasks."""
    return bool(os.environ.get(TASK_KEY))


def packed(spec: ChangefeedSpec, with_key: bool) -> str:
    """Return the form of settings that tasks are given; the same one for the same settings."""
    text = json.dumps(spec.to_json())
    return _sealed(text) if with_key else text


@lru_cache(maxsize=256)  # a worker keeps its connections as long as the text stays the same
def _sealed(text: str) -> str:
    spec = ChangefeedSpec.from_json(json.loads(text))
    return json.dumps(sealed(spec, secret_tables(spec), _keys()).to_json())


def unpacked(text: str) -> ChangefeedSpec:
    """Return the settings, in a task.

    Raises:
        EngineError: this process was not started by Spark as it should have been.
    """
    form = json.loads(text)
    if key_ids(text):
        form = opened(form, _keys())
    return ChangefeedSpec.from_json(form)


class SealedTask:
    """What a task runs, with all that it holds: on its way there it is encrypted."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, batches: Batches) -> Batches:
        """Run it."""
        return self._task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_task, (_keys().seal_bytes(pickle.dumps(self._task), _TASK),)


def shipped(task: Task, session: SparkSession) -> Task:
    """Return a function that tasks of a session run, with what `task` holds.

    Settings and logins in it cannot be read on the way, where the session's tasks have our key.
    """
    if has_key(session.sparkContext.getConf()):
        task = SealedTask(task)
    return task.__call__  # type: ignore[no-any-return, operator]


def _opened_task(data: bytes) -> SealedTask:
    content = _keys().open_bytes(data, _TASK)
    if content is None:
        raise EngineError(f"a task has another {TASK_KEY} than the process that made it")
    return SealedTask(pickle.loads(content))


def _keys() -> SecretKeys:
    key_text = os.environ.get(TASK_KEY, "")
    if not key_text:
        raise EngineError(
            f"a task has no {TASK_KEY} in its environment; do not take {SETTING} away from "
            "executors"
        )
    return SecretKeys.of(base64.b64decode(key_text))
