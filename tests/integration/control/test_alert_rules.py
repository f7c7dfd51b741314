"""The alert rules, as Prometheus' own tool reads and tries them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import yaml

from page_examples import ROOT
from rowferry.testing.servers.prometheus import promtool

DEPLOY = ROOT / "deploy"


def test_promtool_takes_the_rules() -> None:
    found = promtool("check", "rules", "alerts.yaml", folder=DEPLOY)
    assert found.returncode == 0, found.stderr
    count = len(yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"])
    assert f"SUCCESS: {count} rules found" in found.stdout


def test_alerts_stay_and_paused_ones_are_silent(tmp_path: Path) -> None:
    found = promtool("test", "rules", "alerts_test.yaml", folder=DEPLOY)
    assert found.returncode == 0, found.stdout + found.stderr
    # Each alert is tried; and a rule that resolves itself, as there was one, is noticed.
    tried = set(re.findall(r"alertname: (\w+)", (DEPLOY / "alerts_test.yaml").read_text()))
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert tried == {rule["alert"] for rule in rules}
    shutil.copy(DEPLOY / "alerts_test.yaml", tmp_path)
    wrong = (DEPLOY / "alerts.yaml").read_text().replace('state="failed"}) == 1', 'state="no"})')
    (tmp_path / "alerts.yaml").write_text(wrong)
    assert promtool("test", "rules", "alerts_test.yaml", folder=tmp_path).returncode != 0
