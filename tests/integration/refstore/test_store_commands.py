"""The command line of the store and of the workloads, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rowferry.change.table import TableId
from rowferry.face.cli.refstore import app as refstore
from rowferry.face.cli.workload import app as workload
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.refstore.workload import START_BALANCE, Bank

COMMANDS = CliRunner()


def test_administration(cluster: LocalCluster, store: Store) -> None:
    at = ["--master", cluster.master_address]
    made = COMMANDS.invoke(refstore, ["ddl", "CREATE DATABASE cli", *at])
    assert made.output.startswith("committed at ")
    sql = "CREATE TABLE cli.t (id bigint PRIMARY KEY)"
    assert COMMANDS.invoke(refstore, ["ddl", sql, "--ranges", "2", *at]).exit_code == 0
    assert "cli.t\tid" in COMMANDS.invoke(refstore, ["tables", *at]).output
    found = store.ranges(TableId("cli", "t"))
    key = found[0].start.hex() + "8000000000000005"
    split = COMMANDS.invoke(refstore, ["split", str(found[0].range_id), "--key", key, *at])
    assert "holds the right half" in split.output
    moved = COMMANDS.invoke(refstore, ["move-leader", str(found[0].range_id), *at])
    assert "is led by 127.0.0.1:" in moved.output
    compacted = COMMANDS.invoke(refstore, ["compact", str(found[1].range_id), *at])
    assert "now begins at 1" in compacted.output
    assert "catalog" in COMMANDS.invoke(refstore, ["ranges", *at]).output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ddl", "SELECT 1"], "[RF-1006]"),
        (["split", "999"], "[RF-6000] there is no range 999"),
        (["split", "1", "--key", "xyz"], "expected a key in hex"),
        (["move-leader", "1", "--to", "127.0.0.1:9"], "cannot move"),
    ],
)
def test_errors_are_one_line(cluster: LocalCluster, arguments: list[str], words: str) -> None:
    result = COMMANDS.invoke(refstore, [*arguments, "--master", cluster.master_address])
    assert result.exit_code == 1
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_bad_listen_address_is_one_line(tmp_path: Path) -> None:
    result = COMMANDS.invoke(
        refstore, ["master", "--listen", "nonsense", "--data-dir", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert "expected HOST:PORT" in result.output


def test_workloads(cluster: LocalCluster, store: Store) -> None:
    at = ["--master", cluster.master_address]
    result = COMMANDS.invoke(
        workload,
        ["bank", "--accounts", "50", "--transactions", "20", "--database", "cli_bank", *at],
    )
    assert "cli_bank.accounts: 20 transactions, 40 rows changed" in result.output
    assert Bank("cli_bank", 50).total(store) == 50 * START_BALANCE
    paced = ["mixed", "--seconds", "1", "--rate", "5", "--threads", "1", "--database", "cli_mixed"]
    result = COMMANDS.invoke(workload, [*paced, *at])
    assert result.exit_code == 0, result.output
    count = int(result.output.split(": ")[1].split()[0])
    assert 1 <= count <= 6
    result = COMMANDS.invoke(workload, ["bank", *at])
    assert result.exit_code == 1
    assert "--transactions or --seconds" in result.output
