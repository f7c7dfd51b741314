"""Metrics, the dashboard, alerts and the page about them name the same things."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from face_page_kit import page, python_block
from prometheus_client import Metric

from page_examples import ROOT, blocks, table_rows
from rowferry.control.fleet.measures import REGISTRY


def collected() -> dict[str, Metric]:
    return {metric.name: metric for metric in REGISTRY.collect()}


def known_series() -> set[str]:
    """Return every name that a query may use."""
    found = set()
    for name, metric in collected().items():
        ends = {"counter": ["_total"], "histogram": ["", "_bucket", "_count", "_sum"]}
        found |= {name + end for end in ends.get(metric.type, [""])}
    return found


def labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of each metric, under every name that a query may use for it."""
    found: dict[str, tuple[str, ...]] = {}
    for collector, names in REGISTRY._collector_to_names.items():
        if hasattr(collector, "_labelnames"):
            found |= {name: tuple(collector._labelnames) for name in names}
            continue
        for family in collector.describe():
            mine = tuple(family._labelnames)  # type: ignore[attr-defined]
            found |= {family.name: mine, f"{family.name}_total": mine}
    return found


def queries() -> list[str]:
    dashboard = json.loads((ROOT / "deploy/grafana/rowferry.json").read_text())
    found = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    found += [v["definition"] for v in dashboard["templating"]["list"] if "definition" in v]
    rules = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())
    return found + [r["expr"] for group in rules["groups"] for r in group["rules"]]


def test_dashboard_and_alerts_name_metrics_that_exist() -> None:
    used = {name for query in queries() for name in re.findall(r"rowferry_\w+", query)}
    assert used - known_series() == set()
    without = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in used}
    assert set(collected()) - without == set(), "a metric that nobody looks at"


def test_queries_use_labels_that_their_metrics_have() -> None:
    always = {"le", "instance", "job"}
    for query in queries():
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
        named = re.findall(r"rowferry_\w+", query)
        has = {label for name in named for label in labels().get(name, ())} | always
        wanted = {
            w.strip()
            for part in re.findall(r"(?:by|on) \(([^)]*)\)", query)
            for w in part.split(",")
        }
        wanted |= set(re.findall(r"[{,]\s*(\w+)\s*=", query))
        assert wanted <= has, query


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/rowferry.json").read_text())
    panels = dashboard["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not mine & cells, panel["title"]
        cells |= mine
        assert panel["description"] and all(t["legendFormat"] for t in panel["targets"])


def test_the_monitoring_page_lists_metrics_and_alerts() -> None:
    text = page("monitoring.md")
    listed = {
        name.strip("`"): tuple(re.findall(r"`(\w+)`", names))
        for name, names, _ in table_rows(text, "metric|labels|meaning")
    }
    shown = {
        name + ("_total" if metric.type == "counter" else ""): labels()[name]
        for name, metric in collected().items()
    }
    assert listed == shown
    rules = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"][0]["rules"]
    alerts = [
        [name.strip("`"), severity]
        for name, severity, _ in table_rows(text, "alert|severity|meaning")
    ]
    assert alerts == [[r["alert"], r["labels"]["severity"]] for r in rules]
    assert all(r["annotations"]["summary"] and r["annotations"]["description"] for r in rules)


def test_the_example_of_the_monitoring_page(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = python_block("monitoring.md", page("monitoring.md"))
    exec(compile(code.replace("http://127.0.0.1:8300", server), "monitoring.md", "exec"), {})
    assert float(capsys.readouterr().out) >= 0


def test_the_logs_example_has_the_formatters_keys() -> None:
    (line,) = [
        b.text for b in blocks("monitoring.md", page("monitoring.md")) if b.text.startswith("{")
    ]
    found: dict[str, Any] = json.loads(line)
    assert list(found) == ["ts", "level", "logger", "message", "changefeed", "code"]
