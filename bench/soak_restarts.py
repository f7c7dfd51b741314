"""What restarts leave behind: a server's memory, while all that it talks to is restarted in turns.

    .venv/bin/python bench/soak_restarts.py [--rounds 5] [--feeds 40] [--tables 5] [--take-overs]

The world of `bench/soak.py` with few writes. In each round the meta database, both sources, the
broker and the sink are restarted, one after the other, and after each one the two servers tell what
memory is for. They themselves are never restarted: what a restart of others leaves would add up.

With `--take-overs` one of the two servers is killed in each round instead, and started again when
the other one has its changefeeds: what a take-over leaves in the survivor would add up.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import soak
from soak_events import DOWN_S
from soak_watch import Watch
from soak_world import Member, World, plan_feeds

_MEMORY = re.compile(r'^rowferry_memory_bytes\{of="(\w+)"\} (\S+)$', re.M)
RATE, DDL_EVERY_S, SETTLE_S = 10.0, 8.0, 38.0


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--feeds", type=int, default=40)
    ask.add_argument("--tables", type=int, default=5, help="of each changefeed")
    ask.add_argument("--take-overs", action="store_true", help="kill one of the servers instead")
    asked = ask.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rowferry-soak-"))
    folder.chmod(0o755)
    try:
        _run(asked, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(asked: argparse.Namespace, folder: Path) -> None:
    feeds = plan_feeds(asked.feeds)
    with World(folder, feeds, asked.tables, 2) as world:
        world.make_tables()
        for member in world.members:
            member.start()
        world.create_feeds()
        soak.wait_ready(Watch(world, folder / "samples.jsonl"), len(feeds))
        for source in world.sources.values():
            source.ddl_every_s, source.rate = DDL_EVERY_S, RATE / len(world.sources)
            source.start()
        time.sleep(60)
        _tell("before", world)
        for number in range(1, asked.rounds + 1):
            if asked.take_overs:
                _take_over(f"round {number}", world)
            else:
                _restart_others(f"round {number}", world)


def _restart_others(when: str, world: World) -> None:
    for name in ("meta", "mysql", "broker", "mariadb", "target"):
        server: Any = getattr(world, name)
        server.stop()
        time.sleep(DOWN_S)
        server.restart()
        time.sleep(SETTLE_S)
        _tell(f"{when}, {name}", world)


def _take_over(when: str, world: World) -> None:
    """Let the last server have everything for a while, then its half again."""
    killed, survivor = world.members[0], world.members[-1:]
    killed.kill()
    time.sleep(SETTLE_S)
    _tell(f"{when}, all on one", world, survivor)
    killed.start()
    time.sleep(2 * SETTLE_S)
    _tell(f"{when}, half of them again", world, survivor)


def _tell(what: str, world: World, members: Sequence[Member] = ()) -> None:
    """Print what the servers, or these, say of their memory, in MB."""
    lines = []
    for member in members or world.members:
        with urllib.request.urlopen(f"http://{member.address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        lines.append(", ".join(f"{of} {float(b) / 1e6:.0f}" for of, b in _MEMORY.findall(text)))
    print(f"{time.strftime('%T')} {what}: {' | '.join(lines)}", flush=True)


if __name__ == "__main__":
    main()
