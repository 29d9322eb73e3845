from __future__ import annotations

import pytest

from pairbus.errors import ArgumentError
from pairbus.gateway.atom import routes
from pairbus.gateway.atom.routes import query_of, route_of


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/?api-version=2024-05", (routes.ROOT, "", "", "")),
        ("/$Resources/queues?$skip=0", (routes.QUEUES, "", "", "")),
        ("/%24Resources/Queues", (routes.QUEUES, "", "", "")),
        ("/$resources/TOPICS/", (routes.TOPICS, "", "", "")),
        ("/$Resources/relays", (routes.UNKNOWN, "", "", "")),
        ("/$Resources/queues/x", (routes.UNKNOWN, "", "", "")),
        ("/$namespaceinfo?api-version=2021-05", (routes.NAMESPACE_INFO, "", "", "")),
        ("/$NamespaceInfo", (routes.NAMESPACE_INFO, "", "", "")),
        ("/orders", (routes.ENTITY, "orders", "", "")),
        ("/a/b", (routes.ENTITY, "a/b", "", "")),
        ("/a%2Fb", (routes.ENTITY, "a/b", "", "")),
        ("/a%2fb?enrich=false", (routes.ENTITY, "a/b", "", "")),
        ("/a%252Fb", (routes.ENTITY, "a%2Fb", "", "")),
        ("/subscriptions", (routes.ENTITY, "subscriptions", "", "")),
        ("/t/subscriptions", (routes.SUBSCRIPTIONS, "t", "", "")),
        ("/a/b/Subscriptions/s", (routes.SUBSCRIPTION, "a/b", "s", "")),
        ("/a%2Fb/SUBSCRIPTIONS/s", (routes.SUBSCRIPTION, "a/b", "s", "")),
        ("/subscriptions/subscriptions/rules", (routes.SUBSCRIPTION, "subscriptions", "rules", "")),
        ("/t/subscriptions/s/rules", (routes.RULES, "t", "s", "")),
        ("/t/Subscriptions/s/Rules/%24Default", (routes.RULE, "t", "s", "$Default")),
        ("/t/Subscriptions/s/Rules/$Default", (routes.RULE, "t", "s", "$Default")),
        ("/t/subscriptions/s/other", (routes.UNKNOWN, "t", "", "")),
        ("/t/subscriptions/s/rules/r/more", (routes.UNKNOWN, "t", "", "")),
        ("/t/subscriptions//rules", (routes.UNKNOWN, "t", "", "")),
    ],
)
def test_targets_name_resources(target: str, expected: tuple[int, str, str, str]) -> None:
    route = route_of(target)

    assert (route.what, route.path, route.subscription, route.rule) == expected


@pytest.mark.promise("M2")
@pytest.mark.parametrize("target", ["//a", "/a//", "/./a", "/A/../b", "/a/%2e%2e/b"])
def test_nothing_is_tidied_away(target: str) -> None:
    # The token is judged by this path and the entity is found by it: both see the same text.
    route = route_of(target)

    assert route.resource == route.path
    assert route.path not in ("a", "b", "A")


def test_queries_give_version_and_page() -> None:
    query = query_of("/x?%24skip=20&$TOP=10&api-version=2021-05")

    assert (query.version, query.skip, query.top) == ("2021-05", 20, 10)


def test_missing_queries_mean_the_oldest_version_and_the_first_page() -> None:
    query = query_of("/x")

    assert (query.version, query.skip, query.top) == ("2017-04", 0, 100)


@pytest.mark.promise("M12")
def test_pages_are_bounded() -> None:
    assert query_of("/x?$top=5000").top == routes.PAGE_MAX


@pytest.mark.parametrize(
    "query",
    [
        "$skip=-1",
        "$skip=x",
        "$top=0",
        "$top=",
        "$skip=99999999999",
        "$skip=" + "9" * 5000,
        "api-version=latest",
        "api-version=2099-01",
        "api-version=1999-01",
        "api-version=2021-05-preview",
        "api-version=",
        "$filter=x",
        "&".join(f"a{number}=" for number in range(routes.QUERY_FIELDS_MAX + 1)),
    ],
)
def test_bad_queries_are_refused(query: str) -> None:
    with pytest.raises(ArgumentError):
        query_of(f"/x?{query}")


@pytest.mark.parametrize("version", ["2013-10", "2015-01", "2016-07", "2017-04", "2021-05", "2024-05"])
def test_versions_that_clients_speak_are_known(version: str) -> None:
    assert query_of(f"/x?api-version={version}").version == version
