"""The page of a namespace that several nodes serve, opened at a node that relays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster.kit import Cluster
from tests.integration.web.chromium import Browser
from tests.integration.web.kit import photograph
from tests.postgres_kit import own_server

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def test_the_page_shows_owner_lease_nodes_and_standby_through_any_node(
    browser: Browser, tmp_path: Path
) -> None:
    with own_server() as database:
        standby = database.add_standby(name="db2")
        cluster = Cluster(tmp_path / "cluster", database.url(), "node-1", "node-2")
        try:
            cluster.start()
            owner, other = cluster.owner_and_other()
            browser.open(f"http://127.0.0.1:{other.port}/")
            browser.wait_text("Sign in")
            browser.fill("#key", other.connection_string)
            browser.click("button[type=submit]")
            browser.wait_text(f"{owner.name} owns contoso", ".cluster")
            browser.wait_text("epoch 1", ".cluster")
            browser.wait_text("relay", ".cluster tbody")
            browser.wait_text("Commits wait for a standby", ".cluster")
            photograph(browser, "cluster", ".cluster")
        finally:
            cluster.kill()
            standby.dispose()
