"""What is shipped: a wheel that works where nothing else is, with everything the program reads at run time."""

from __future__ import annotations

import configparser
import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from pairbus.cli.broker.serve import ServeFlags, serve
from pairbus.server.config.options import make_options

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_extras_are_those_that_the_documents_promise() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)

    assert {"spark", "postgres"} <= set(extras)
    assert any(line.startswith("pyspark") for line in extras["spark"])
    assert any(line.startswith("psycopg") for line in extras["postgres"])


def test_every_page_can_be_found_from_the_site() -> None:
    """`make site` would say so too, but it is not part of `make test`."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    decisions = (ROOT / "docs" / "decisions" / "index.md").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]

    missing = [
        str(page)
        for page in pages
        if str(page) not in navigation
        and not (page.parent.name == "decisions" and f"({page.name})" in decisions)
    ]

    assert missing == []


def unit(name: str = "pairbus.service") -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(ROOT / "packaging" / name)
    return parser


def test_the_systemd_unit_gives_the_broker_its_data_and_nothing_else() -> None:
    service = unit()["Service"]

    assert "--data ${STATE_DIRECTORY}" in service["ExecStart"]
    assert "--ready-file ${RUNTIME_DIRECTORY}/ready.json" in service["ExecStart"]
    expected = {
        "DynamicUser": "yes",
        "StateDirectory": "pairbus",
        "RuntimeDirectory": "pairbus",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "StateDirectoryMode": "0700",
        "Restart": "on-failure",
    }
    assert {name: service[name] for name in expected} == expected


def test_the_unit_does_not_restart_what_a_person_must_look_at() -> None:
    assert unit()["Service"]["RestartPreventExitStatus"] == "2"


def test_a_node_is_started_again_after_each_end_but_wrong_usage() -> None:
    found = unit("pairbus-node.service")
    service = found["Service"]

    expected = {"Restart": "always", "RestartPreventExitStatus": "2"}
    assert {name: service[name] for name in expected} == expected
    assert found["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_node_may_do_no_more_than_a_single_broker() -> None:
    alone = unit()["Service"]
    node = unit("pairbus-node.service")["Service"]

    own = {"Environment", "EnvironmentFile", "ExecStart", "Restart", "RestartSec"}
    directories = {"StateDirectory", "RuntimeDirectory"}
    assert set(node) - set(alone) == {"EnvironmentFile"}
    assert {name: node[name] for name in set(alone) - own - directories} == {
        name: alone[name] for name in set(alone) - own - directories
    }


def test_every_option_in_the_packaging_exists() -> None:
    known = {name for parameter in serve.params for name in parameter.opts}
    compose = (ROOT / "packaging" / "compose.yaml").read_text()
    commands = re.findall(r"^ +command: .*$", compose, re.MULTILINE)
    starts = [unit(name)["Service"]["ExecStart"] for name in ("pairbus.service", "pairbus-node.service")]

    used = {word for text in (*commands, *starts) for word in re.findall(r"--[a-z-]+", text)}

    assert {"--node", "--advertise"} <= used <= known
    assert len(commands) == 2


def test_the_containers_of_the_compose_file_start_two_nodes_of_one_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compose = (ROOT / "packaging" / "compose.yaml").read_text()
    container = (ROOT / "packaging" / "Containerfile").read_text()
    (entry,) = (json.loads(line) for line in re.findall(r"^ENTRYPOINT (.*)$", container, re.MULTILINE))
    (store,) = re.findall(r"PAIRBUS_STORE: (\S+)", compose)
    monkeypatch.setenv("PAIRBUS_STORE", store)
    made = []
    for line in re.findall(r"^ +command: \[(.*)\]$", compose, re.MULTILINE):
        words = [*entry[2:], *(word.strip().strip('"') for word in line.split(","))]
        at = words.index("--ready-file")
        del words[at : at + 2]  # its directory is the container's
        context = serve.make_context("serve", words)
        made.append(make_options(ServeFlags(**context.params), os.environ))

    first, second = (options.cluster for options in made)
    assert first is not None
    assert second is not None
    assert {options.namespace for options in made} == {"contoso"}
    assert first.node != second.node
    assert first.lease_ms == second.lease_ms
    for cluster in (first, second):
        assert cluster.advertise == (cluster.node, 5671)
        assert re.search(rf"^  {cluster.node}:", compose, re.MULTILINE), (
            "the other node finds it by its service's name"
        )
