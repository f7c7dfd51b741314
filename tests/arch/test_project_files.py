"""What a newcomer finds beside the code: licence, pages, hooks, the workflow, metadata."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from source_tree import ROOT
from trove_classifiers import classifiers as known_classifiers

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
# The text as apache.org publishes it.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_licence_is_the_whole_text_and_named_in_the_package() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["license-files"] == ["LICENSE"]


def test_the_packages_fields_lead_somewhere() -> None:
    project = PROJECT["project"]
    assert set(project["classifiers"]) <= known_classifiers
    assert not any(c.startswith("License ::") for c in project["classifiers"])  # it is in `license`
    assert (ROOT / project["readme"]).exists()
    source = project["urls"]["Source"]
    for name, url in project["urls"].items():
        path = url.removeprefix(f"{source}/blob/main/")
        assert url.startswith("https://") and (path == url or (ROOT / path).exists()), name


def wrong_hooks(config: Any, makefile: str) -> list[str]:
    """Return hooks that would fetch something, or that `make test` does not run."""
    found = []
    for repo in config["repos"]:
        for hook in repo["hooks"]:
            check = hook["entry"].replace(" --force-exclude", "").replace(".venv/bin/", "$(BIN)/")
            if repo["repo"] != "local" or hook["language"] != "system":
                found.append(f"{hook['id']} fetches its program")
            forms = rf'^\t@{re.escape(check)}( \.)?$|--beside "{re.escape(check)}"$'
            if not re.search(forms, makefile, re.MULTILINE):
                found.append(f"{hook['id']} is not what `make test` runs")
    return found


def test_hooks_are_the_checks_of_make_test_and_fetch_nothing() -> None:
    config = loaded(".pre-commit-config.yaml")
    assert wrong_hooks(config, MAKEFILE) == []
    assert len(config["repos"][0]["hooks"]) == 3


def test_wrong_hooks_are_found() -> None:
    hook = {"id": "a", "entry": ".venv/bin/black .", "language": "python"}
    config = {"repos": [{"repo": "https://example.com/a", "hooks": [hook]}]}
    assert len(wrong_hooks(config, MAKEFILE)) == 2


def test_the_workflow_runs_both_lanes_and_builds() -> None:
    jobs = loaded(".github/workflows/ci.yml")["jobs"]
    lanes = jobs["test"]["strategy"]["matrix"]["lane"]
    assert lanes == ["test", "test-rest"]  # side by side; together they are `make test-all`
    ran = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    assert "make ${{ matrix.lane }}" in ran
    targets = {target for line in ran for target in re.findall(r"^make ([a-z-]+)$", line)}
    assert targets == {"setup", "services", "audit", "advisories", "wheel", "site"}
    for target in targets | set(lanes):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_the_changelog_has_known_sections_and_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and len(versions) == len(set(versions))
    sections = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert PROJECT["project"]["version"] in text


def test_pages_of_the_project_are_there() -> None:
    for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY"):
        page = Path(ROOT / f"{name}.md").read_text()
        assert page.startswith("# ") and len(page) > 500, name


def test_test_modules_have_names_of_their_own() -> None:
    """One pytest process imports all test modules by their bare names."""
    named = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, times in named.items() if times > 1 and name != "conftest.py"] == []
