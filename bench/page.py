"""Measure all that the pages on performance and scaling show, one benchmark after the other.

    .venv/bin/python bench/page.py [--only lake,kafka] [--list]

Tables that stand beside each other are then of one day and one machine. Each benchmark writes its
own table into the docs as it ends, so that what was measured stays if the run is broken off; one
that fails is named at the end, and keeps none of the others from running. It takes hours, and
nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
# As the pages name them; the longest ones last.
BENCHES: Final = {
    "mariadb": "mysql.py --server mariadb --profile --docs",
    "mysql": "mysql.py --server mysql --profile --docs",
    "kafka": "kafka.py --docs",
    "mysql-sink": "mysql_sink.py --docs",
    "postgresql-sink": "postgresql_sink.py --docs",
    "queues": "queues.py --docs",
    "pulsar": "pulsar_feed.py --scale 0.5 --docs",
    "search": "search.py --scale 0.25 --docs",
    "whole": "whole.py --docs",
    "masks": "masks.py --docs",
    "resnapshot-lag": "resnapshot_lag.py --docs",
    "many-feeds": "many_feeds.py --feeds 50,100,200 --transactions 1000 --docs",
    "storage": "storage.py --scale 0.5 --tries 2 --docs",
    "cluster": "cluster.py --docs",
    "many-tables": "many_tables.py --docs",
    "snapshots-mariadb": "snapshots.py --server mariadb --docs",
    "snapshots-mysql": "snapshots.py --server mysql --docs",
    "memory": "memory.py --docs",
    "lake": "lake.py --reading --docs",
}


def main() -> None:
    """Run what was asked for; exit code 1 if one has failed."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--only", default=",".join(BENCHES), help="these, with commas between them")
    ask.add_argument("--list", action="store_true", help="only say what there is")
    asked = ask.parse_args()
    names = asked.only.split(",")
    if unknown := set(names) - set(BENCHES):
        ask.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    failed = []
    for name in names:
        script, *arguments = BENCHES[name].split()
        command = [sys.executable, str(HERE / script), *arguments]
        print(f"{name}: bench/{BENCHES[name]}", flush=True)
        if asked.list:
            continue
        began = time.monotonic()
        code = subprocess.run(command, check=False).returncode
        print(f"{name}: exit code {code} after {time.monotonic() - began:.0f} s", flush=True)
        if code:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
