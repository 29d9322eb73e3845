"""``/metrics`` of a real broker: the reference names exactly what is served, and a scraper needs no more than Basic."""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from pairbus.sdk.credentials import credentials_of
from pairbus.server.cluster.metrics import CLUSTER_METRICS
from pairbus.testing import Namespace

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"


def scrape(namespace: Namespace, password: str) -> str:
    credentials = credentials_of(namespace.connection_string)
    login = base64.b64encode(f"{credentials.key_name}:{password}".encode()).decode()
    request = urllib.request.Request(
        f"http://{namespace.http_address}/metrics", headers={"Authorization": f"Basic {login}"}
    )
    with urllib.request.urlopen(request, timeout=45) as answer:
        return str(answer.read().decode())


@pytest.mark.namespace(queues=["orders"])
def test_the_reference_names_every_metric_with_its_kind_and_no_other(namespace: Namespace) -> None:
    text = scrape(namespace, credentials_of(namespace.connection_string).key)
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    named = re.findall(r"^\| `(pairbus_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)

    assert len(kinds) > 30
    # Those of a node with its log in a database are served by nodes alone.
    assert sorted(kinds) == sorted(pair for pair in named if pair[0] not in CLUSTER_METRICS)
    assert {name for name, _ in named} >= set(CLUSTER_METRICS)


@pytest.mark.promise("M6", "M7")
@pytest.mark.namespace(queues=["orders"])
def test_a_wrong_key_gets_nothing_and_no_key_is_told(namespace: Namespace) -> None:
    key = credentials_of(namespace.connection_string).key
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(namespace, "wrong")

    assert refused.value.code == 401
    assert b"orders" not in refused.value.read()
    assert refused.value.headers["WWW-Authenticate"].startswith("Basic")
    assert key not in scrape(namespace, key)
