"""``pairbus cluster move`` and ``drain`` over tables in memory: what they refuse, and what they say when nobody takes over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from pairbus.cli.broker import cluster as module
from pairbus.cli.root import root
from pairbus.server.cluster.status import LATE_MS, STALE_MS, STOPPED
from pairbus.storage.table.ports import (
    MOVER,
    REQUEST_DRAIN,
    REQUEST_MOVE,
    REQUEST_NONE,
    HeldUp,
    NodeEntry,
    Ownership,
)


def node(name: str, *, age_ms: int = 0, state: str = "idle", asked: str = "") -> NodeEntry:
    return NodeEntry(node=name, address=f"{name}:1", state=state, version="1", age_ms=age_ms, asked=asked)


class _Nodes:
    def __init__(self, fake: Fake) -> None:
        self.nodes, self.ask, self.forget = fake.entries_now, fake.ask, fake.forget
        self.held_up = lambda: fake.waiting


class Fake:
    """A cluster whose owner gives the namespace up when it is asked, and then ``taker`` takes it. Nodes report all the time but for those
    in ``paused``.
    """

    reports_meanwhile = False
    """Whether a report gets through while a command waits in the database."""

    waiting: tuple[HeldUp, ...] = ()
    """For what calls wait in the database."""

    def __init__(self, *nodes: NodeEntry, taker: str, paused: tuple[str, ...] = ()) -> None:
        self.paused = paused
        self.began = time.monotonic()
        self.entries = {one.node: one for one in nodes}
        self.owner = Ownership(1, "a", "a:1", 2_000)
        self.taker = taker
        self.lease = self
        self.nodes = _Nodes(self)
        self.requests: list[tuple[str, str]] = []

    def state(self) -> tuple[Ownership, list[NodeEntry]]:
        return self.owner, self.entries_now()

    def entries_now(self) -> list[NodeEntry]:
        age_ms = round((time.monotonic() - self.began) * 1000)
        return [
            replace(one, age_ms=one.age_ms + age_ms) if one.node in self.paused else one
            for one in self.entries.values()
        ]

    def copies(self) -> None:
        """The database does not tell."""

    def answered_by(self) -> str:
        return "db-1:5433"

    def look(self) -> Ownership:
        return self.owner

    def ask(self, name: str, request: str) -> bool:
        self.requests.append((name, request))
        if name not in self.entries:
            return False
        self.entries[name] = replace(self.entries[name], asked=request)
        if request:
            self.owner = Ownership(
                2 if self.taker else 1, self.taker, f"{self.taker}:1" if self.taker else "", 2_000
            )
        return True

    def forget(self, name: str, age_ms: int) -> bool:
        if self.reports_meanwhile or name not in self.entries or self.entries[name].age_ms < age_ms:
            return False
        del self.entries[name]
        return True


def run(monkeypatch: pytest.MonkeyPatch, fake: Fake, *words: str) -> Result:
    @contextmanager
    def tables(_: object) -> Iterator[Fake]:
        yield fake

    monkeypatch.setattr(module, "_tables", tables)
    monkeypatch.setattr(module, "POLL_SECONDS", 0)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0)
    store = ("--store", "postgresql://x/y", "--namespace", "contoso")
    return CliRunner().invoke(root, ["cluster", *words, *store], standalone_mode=False)


def test_a_move_that_another_node_took_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Fake(node("a"), node("b"), taker="b"), "move")
    assert result.return_value == 0
    assert result.stdout == "b owns contoso now (epoch 2); before: a\n"


def test_a_move_after_which_the_former_owner_serves_again_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(node("a"), node("b"), taker="a")  # b reports, and does not take it
    result = run(monkeypatch, fake, "move")
    assert result.return_value == 1
    assert (
        "no other node took contoso: a gave it up, and after a moment serves it again (epoch 2)"
        in result.stderr
    )
    assert result.stdout == ""
    assert fake.requests == [("a", REQUEST_MOVE)]


def test_a_move_that_nobody_takes_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Fake(node("a"), node("b"), taker=""), "move", "--timeout", "0.3")
    assert result.return_value == 1
    assert "no other node took contoso within 0.3 s; " in result.stderr


@pytest.mark.parametrize("words", [("move",), ("drain", "a")])
@pytest.mark.parametrize(
    "other", [node("b", age_ms=STALE_MS), node("b", state=STOPPED), node("b", asked=REQUEST_DRAIN), None]
)
def test_the_only_node_that_takes_part_keeps_the_namespace(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], other: NodeEntry | None
) -> None:
    fake = Fake(node("a"), *([] if other is None else [other]), taker="")
    result = run(monkeypatch, fake, *words)
    assert result.return_value == 1
    assert "a is the only node of contoso that takes part: start another one first" in result.stderr
    assert fake.requests == []


def test_the_only_node_is_drained_by_force_and_the_way_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(node("a"), taker="")
    result = run(monkeypatch, fake, "drain", "a", "--force")
    assert result.return_value == 0
    assert fake.requests == [("a", REQUEST_DRAIN)]
    assert "nobody serves contoso" in result.stdout
    assert "drain a --undo" in result.stdout


class Slow(Fake):
    """A node that needs some time to give the namespace up."""

    def __init__(self, looks: int) -> None:
        super().__init__(node("a"), taker="")
        self.looks = looks

    def look(self) -> Ownership:
        self.looks -= 1
        return Ownership(1, "a", "a:1", 2_000) if self.looks >= 0 else self.owner


def test_a_forced_drain_is_told_once_the_node_has_given_the_namespace_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Slow(looks=3)
    result = run(monkeypatch, fake, "drain", "a", "--force")
    assert result.return_value == 0
    assert "nobody serves contoso" in result.stdout
    assert fake.looks < 0, "it has waited"

    result = run(monkeypatch, Slow(looks=10**9), "drain", "a", "--force", "--timeout", "0.01")
    assert result.return_value == 1
    assert "a is asked to take no part, and still owned contoso after 0.01 s" in result.stderr
    assert result.stdout == ""


def test_a_drain_that_nobody_took_over_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(node("a"), node("b"), taker="")
    result = run(monkeypatch, fake, "drain", "a", "--timeout", "0.3")
    assert result.return_value == 1
    assert "no other node took contoso within 0.3 s, so a takes part again" in result.stderr
    assert fake.requests == [("a", REQUEST_DRAIN), ("a", REQUEST_NONE)]


@pytest.mark.parametrize("words", [("move",), ("drain", "a")])
def test_a_node_that_has_taken_the_lease_and_reads_the_log_is_named(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    class Reading(Fake):
        def look(self) -> Ownership:
            return Ownership(2, "b", "", 2_000)

    fake = Reading(node("a"), node("b"), taker="b")
    result = run(monkeypatch, fake, *words, "--timeout", "0.3")
    assert result.return_value == 1
    assert "b takes contoso, and does not serve it yet" in result.stderr
    assert len(fake.requests) == 1


@pytest.mark.parametrize("words", [("move",), ("drain", "a")])
def test_a_node_that_does_not_report_any_more_is_not_given_the_namespace(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    fake = Fake(node("a"), node("b", age_ms=2_000), taker="", paused=("b",))
    result = run(monkeypatch, fake, *words, "--timeout", "0.5")
    assert result.return_value == 1
    assert (
        "a is the only node of contoso that takes part (no other node reports; the last reports were b 2.0 s ago)"
        in result.stderr
    )
    assert fake.requests == []


def test_a_node_that_runs_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(node("a"), node("b"), node("c", state=STOPPED), taker="")
    result = run(monkeypatch, fake, "drain", "b", "--forget")
    assert result.return_value == 1
    assert "b runs" in result.stderr
    assert run(monkeypatch, fake, "drain", "c", "--forget").return_value == 0
    assert set(fake.entries) == {"a", "b"}


def test_a_node_that_reports_while_the_command_waits_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(node("a"), node("b", age_ms=STALE_MS, asked=REQUEST_DRAIN), taker="")
    fake.reports_meanwhile = True
    result = run(monkeypatch, fake, "drain", "b", "--forget")
    assert result.return_value == 1
    assert "b runs" in result.stderr
    assert fake.entries["b"].asked == REQUEST_DRAIN


LOCKED = (HeldUp("pairbus_node", (4711,)), HeldUp("pairbus_shard"))


def test_a_silent_node_is_not_forgotten_while_calls_wait_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(node("a"), node("b", age_ms=STALE_MS), node("c", state=STOPPED), taker="")
    fake.waiting = LOCKED
    result = run(monkeypatch, fake, "drain", "b", "--forget")
    assert result.return_value == 1
    place = "for a lock on pairbus_node (held by process 4711) and for a lock on pairbus_shard (held by process unknown)"
    assert f"b may run: calls wait in the database {place}, and no node can report meanwhile" in result.stderr
    # A node that was stopped has said so.
    assert run(monkeypatch, fake, "drain", "c", "--forget").return_value == 0
    fake.waiting = (HeldUp(""),)
    result = run(monkeypatch, fake, "drain", "b", "--forget")
    assert "calls wait in the database for the synchronous standby" in result.stderr
    assert set(fake.entries) == {"a", "b"}


def test_a_node_that_was_held_up_until_now_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock has ended when the command looks, and neither the renewal nor the report has come through yet."""

    class Released(Fake):
        def entries_now(self) -> list[NodeEntry]:
            found = super().entries_now()
            self.entries = {name: replace(one, age_ms=0) for name, one in self.entries.items()}
            return found

    fake = Released(node("a", age_ms=STALE_MS), node("b", age_ms=STALE_MS), taker="")
    fake.owner = replace(fake.owner, remaining_ms=0)
    result = run(monkeypatch, fake, "drain", "a", "--forget")
    assert result.return_value == 1
    assert "a runs" in result.stderr

    class Renewed(Fake):
        def look(self) -> Ownership:
            return replace(self.owner, remaining_ms=1_000)

    renewed = Renewed(node("a", age_ms=STALE_MS), taker="")
    renewed.owner = replace(renewed.owner, remaining_ms=0)
    result = run(monkeypatch, renewed, "drain", "a", "--forget")
    assert result.return_value == 1
    assert "a owns contoso, and its lease lasts another 1.0 s" in result.stderr


@pytest.mark.parametrize("words", [("move",), ("drain", "a")])
def test_the_end_of_a_lease_says_nothing_while_calls_wait_for_a_lock(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    fake = Fake(node("a"), node("b"), taker="b")
    fake.owner, fake.waiting = replace(fake.owner, remaining_ms=0), LOCKED
    result = run(monkeypatch, fake, *words)
    assert result.return_value == 1
    said = "the lease of a has ended, but calls wait in the database for a lock on pairbus_node"
    assert said in result.stderr
    assert fake.requests == []
    if words[0] == "drain":
        assert run(monkeypatch, fake, *words, "--force").return_value == 0


@pytest.mark.parametrize("words", [("move",), ("drain", "a")])
def test_that_no_other_node_reports_is_laid_to_the_lock(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    fake = Fake(node("a"), node("b", age_ms=STALE_MS), taker="b")
    fake.waiting = LOCKED
    result = run(monkeypatch, fake, *words)
    assert result.return_value == 1
    assert "no other node of contoso than a reports: calls wait in the database for a lock" in result.stderr
    assert fake.requests == []


def test_the_status_names_the_lock_and_takes_the_database_for_no_former_primary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(node("a", age_ms=60_000), taker="")
    fake.owner, fake.waiting = replace(fake.owner, remaining_ms=0), LOCKED
    result = run(monkeypatch, fake, "status")
    assert "Calls wait in the database for a lock on pairbus_node (held by process 4711)" in result.stdout
    assert "former primary" not in result.stdout
    assert json.loads(run(monkeypatch, fake, "status", "--json").stdout)["held_up"] == [
        {"table": "pairbus_node", "processes": [4711]},
        {"table": "pairbus_shard", "processes": []},
    ]


def test_an_owner_is_not_forgotten_while_its_lease_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed a moment ago, under a long lease, or only its reports wait."""
    fake = Fake(node("a", age_ms=STALE_MS, asked=REQUEST_DRAIN), node("b"), taker="")
    fake.owner = replace(fake.owner, remaining_ms=9_000)
    result = run(monkeypatch, fake, "drain", "a", "--forget")
    assert result.return_value == 1
    assert "a owns contoso, and its lease lasts another 9.0 s" in result.stderr
    assert set(fake.entries) == {"a", "b"}
    fake.owner = replace(fake.owner, remaining_ms=0)
    result = run(monkeypatch, fake, "drain", "a", "--forget")
    assert result.return_value == 0
    said = "a is forgotten, and so is its drain: it takes part if it is started again; no node owns contoso now\n"
    assert result.stdout == said
    result = run(monkeypatch, fake, "drain", "a", "--undo")
    assert result.return_value == 1
    assert "contoso has no node 'a'" in result.stderr


def test_a_namespace_that_is_moved_has_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(node("a", age_ms=LATE_MS), taker="")
    fake.owner = Ownership(3, MOVER, "", 4_000)
    result = run(monkeypatch, fake, "status")
    assert result.return_value == 1
    said = "contoso: no node owns it while `pairbus store move` moves it (epoch 3), which holds it for another 4 s at least"
    assert said in result.stdout
    assert "former primary" not in result.stdout
    assert "no node owns contoso" in run(monkeypatch, fake, "move").stderr
    assert fake.requests == []


@pytest.mark.parametrize(
    ("age_ms", "remaining_ms", "is_told"), [(60_000, 0, True), (60_000, 1_000, False), (100, 0, False)]
)
def test_a_database_to_which_no_node_has_reported_for_long_may_be_a_former_primary(
    monkeypatch: pytest.MonkeyPatch, age_ms: int, remaining_ms: int, is_told: bool
) -> None:
    """It was frozen, another server was promoted, and it wakes: every node seems to be gone, and all of them serve at the other one."""
    fake = Fake(node("a"), node("b"), taker="")
    fake.owner = replace(fake.owner, remaining_ms=remaining_ms)
    fake.entries = {name: replace(one, age_ms=age_ms) for name, one in fake.entries.items()}
    result = run(monkeypatch, fake, "status")
    told = "No node has reported to db-1:5433 for 60 s. If another server was promoted, this is the former primary"
    assert (told in result.stdout) == is_told
    assert json.loads(run(monkeypatch, fake, "status", "--json").stdout)["answered_by"] == "db-1:5433"
