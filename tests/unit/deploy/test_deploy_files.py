"""Image, compose file, unit and chart: what they promise, as far as their texts tell."""

from __future__ import annotations

import re
import runpy
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from rowferry.face.cli import main as cli

ROOT = Path(__file__).parents[3]
IMAGE, CHART = ROOT / "deploy" / "image", ROOT / "deploy" / "helm" / "rowferry"
DOCKERFILE = (IMAGE / "Dockerfile").read_text()
TEMPLATES = {p.name: p.read_text() for p in (CHART / "templates").iterdir()}
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def server_flags() -> set[str]:
    command = typer.main.get_command(cli.app).commands["server"]  # type: ignore[attr-defined]
    return {flag for parameter in command.params for flag in parameter.opts}


def test_the_image_and_its_trial_have_the_same_steps() -> None:
    steps = (IMAGE / "steps.sh").read_text()
    known = re.search(r"^    ([\w |]+)\) \"\$1\" ;;$", steps, re.MULTILINE)
    assert known is not None
    names = known[1].split(" | ")
    assert re.findall(r"^(\w+)\(\) \{$", steps, re.MULTILINE) == [*names, "packages"]
    in_image = re.findall(r"^RUN sh \S*steps\.sh (\w+)$", DOCKERFILE, re.MULTILINE)
    assert in_image == names
    assert len(re.findall(r"^RUN ", DOCKERFILE, re.MULTILINE)) == len(names)
    tried = re.search(r"^for step in ([\w ]+); do$", (IMAGE / "try.sh").read_text(), re.MULTILINE)
    assert tried is not None and tried[1].split() == names


def test_the_image_runs_as_nobody_in_particular() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert users == ["10001:10001"]
    last = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    assert last.index("USER ") > last.rindex("RUN ")  # nothing is installed by it
    assert "tini" in last
    environment = dict(re.findall(r"(NUMBA_CPU_\w+)=(\w*)", last))
    compiled = dict(re.findall(r"(NUMBA_CPU_\w+)=(\w*)", (IMAGE / "steps.sh").read_text()))
    assert environment == compiled == {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", ".rowferry"} <= set(ignored)


@pytest.mark.parametrize("name", ["steps.sh", "try.sh", "entrypoint.sh", "../helm/lint.sh"])
def test_scripts_are_scripts(name: str) -> None:
    subprocess.run(["sh", "-n", str(IMAGE / name)], check=True)
    assert "\nset -eu\n" in (IMAGE / name).read_text()


def test_an_unknown_step_is_refused() -> None:
    done = subprocess.run(["sh", str(IMAGE / "steps.sh"), "x"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.split()[0]) == (2, "usage:")


def test_entries_of_the_lock_file_are_picked_with_their_hashes() -> None:
    locked = runpy.run_path(str(IMAGE / "locked.py"))
    entries = locked["entries"]((ROOT / "requirements.lock").read_text())
    assert {"pyspark", "pyarrow", "typer", "mypy"} <= set(entries)
    assert all("--hash=sha256:" in entry for entry in entries.values())
    assert entries["pyarrow"].startswith("pyarrow==")
    assert sum(map(len, map(str.splitlines, entries.values()))) == len(
        (ROOT / "requirements.lock").read_text().splitlines()
    )
    assert locked["names"]("# no\nPyYAML==6.0\na_b.c==1 ; x\n") == ["pyyaml", "a-b-c"]


def test_the_compose_file() -> None:
    content = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    server, meta = content["services"]["server"], content["services"]["meta"]
    assert server["depends_on"] == {"meta": {"condition": "service_healthy"}}
    assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
    assert {p.split(":")[0] for p in server["ports"]} == {"127.0.0.1"}
    named = {*server["secrets"], *meta["secrets"]}
    assert named == set(content["secrets"])
    assert not [k for k in meta["environment"] if k == "POSTGRES_PASSWORD"]
    assert {w.split("=")[0] for w in server["command"][1:]} <= server_flags()
    dockerfile = ROOT / "deploy" / server["build"]["context"] / server["build"]["dockerfile"]
    assert dockerfile.resolve() == IMAGE / "Dockerfile"


def test_the_unit_is_hardened() -> None:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "systemd" / "rowferry.service")
    service = dict(unit["Service"])
    for key in "DynamicUser NoNewPrivileges PrivateTmp ProtectHome RestrictSUIDSGID".split():
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    words = service["ExecStart"].split()
    assert {w for w in words if w.startswith("--")} <= server_flags()
    assert int(service["TimeoutStopSec"]) >= 60  # draining takes a micro-batch


def paths(values: dict[str, Any], lead: str = "") -> set[str]:
    found = set()
    for key, value in values.items():
        found.add(f"{lead}{key}")
        if isinstance(value, dict):
            found |= paths(value, f"{lead}{key}.")
    return found


def test_the_chart_reads_every_value_and_no_other() -> None:
    used = {v for text in TEMPLATES.values() for v in re.findall(r"\.Values\.([\w.]+)", text)}
    known = paths(VALUES)
    assert used <= known
    unread = {p for p in known if not any(p.startswith(u) or u.startswith(p) for u in used)}
    assert unread == set()


def test_the_chart_gives_the_server_flags_that_it_has() -> None:
    flags = set(re.findall(r"^ +- (--[\w-]+)=?", TEMPLATES["deployment.yaml"], re.MULTILINE))
    assert {"--meta", "--token-file", "--spark-master"} <= flags <= server_flags()


def test_pods_of_the_chart_are_restricted() -> None:
    for name, containers in (("deployment.yaml", 1), ("postgres.yaml", 1), ("spark.yaml", 1)):
        text = TEMPLATES[name]
        assert text.count("runAsNonRoot: true") == containers
        assert text.count('include "rowferry.restricted"') == containers
        assert "RuntimeDefault" in text
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert probe in TEMPLATES["deployment.yaml"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
