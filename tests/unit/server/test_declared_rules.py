"""Access rules of the namespace that a configuration file declares: they come with the file, and go when a later file lacks them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.engine.records import NamespacePut
from pairbus.errors import UsageError
from pairbus.gateway.broker import Broker
from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule
from pairbus.server.assemble import assemble
from pairbus.server.config.declarations import Declarations, read_declarations
from pairbus.server.config.options import MEMORY, Options
from pairbus.storage.memory import MemoryDisk, MemoryStore

NOW = 1_700_000_000_000


def declared(*names: str) -> Declarations:
    rules = [{"Name": name, "Rights": ["Send"], "PrimaryKey": f"key-of-{name}"} for name in names]
    if ROOT_RULE in names:
        rules[names.index(ROOT_RULE)]["Rights"] = ["Manage", "Send", "Listen"]
    text = json.dumps({"PairBus": {"AccessRules": rules}})
    return replace(read_declarations(text, lambda _form, _name: ""), file="Config.json")


class Life:
    """One start of a broker over a disk that stays."""

    def __init__(self, disk: MemoryDisk, path: Path, declarations: Declarations) -> None:
        options = Options(namespace="contoso", data=path, store=MEMORY, tls=False, declarations=declarations)
        self.store = MemoryStore(disk)
        assembly = assemble(options, NOW, self.store)
        assert isinstance(assembly.broker, Broker)
        self.namespace = assembly.broker.namespace
        self.commit()

    def commit(self) -> None:
        batch = self.store.seal()
        if batch is not None:
            self.store.commit(batch)

    @property
    def names(self) -> list[str]:
        return sorted(rule.name for rule in self.namespace.access_rules)

    @property
    def root_key(self) -> str:
        return next(rule.primary_key for rule in self.namespace.access_rules if rule.name == ROOT_RULE)


@pytest.mark.promise("M5")
def test_a_rule_that_the_file_no_longer_declares_is_removed_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    root_key = Life(disk, tmp_path, declared("shop", "audit")).root_key

    with caplog.at_level(logging.WARNING):
        life = Life(disk, tmp_path, declared("audit"))

    assert life.names == [ROOT_RULE, "audit"]
    assert life.root_key == root_key
    assert [vars(record)["key_name"] for record in caplog.records] == ["shop"]
    assert "key-of-shop" not in caplog.text
    assert Life(disk, tmp_path, declared()).names == [ROOT_RULE]


@pytest.mark.promise("M5")
def test_a_start_without_a_file_removes_no_rule_and_a_later_file_still_does(tmp_path: Path) -> None:
    disk = MemoryDisk()
    Life(disk, tmp_path, declared("shop"))

    assert Life(disk, tmp_path, Declarations()).names == [ROOT_RULE, "shop"]
    assert Life(disk, tmp_path, declared("audit")).names == [ROOT_RULE, "audit"]


@pytest.mark.promise("M5")
def test_a_rule_that_no_file_declared_stays(tmp_path: Path) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, declared("shop"))
    own = AccessRule(name="own", rights=("Listen",), primary_key="1", secondary_key="2")
    life.namespace.set_access_rules((*life.namespace.access_rules, own), NOW)
    life.commit()

    assert Life(disk, tmp_path, declared("shop")).names == [ROOT_RULE, "own", "shop"]
    assert Life(disk, tmp_path, declared()).names == [ROOT_RULE, "own"]


def test_the_root_rule_keeps_its_keys_when_the_file_no_longer_declares_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    Life(disk, tmp_path, declared(ROOT_RULE))

    with caplog.at_level(logging.WARNING):
        life = Life(disk, tmp_path, declared("shop"))

    assert (life.names, life.root_key) == ([ROOT_RULE, "shop"], f"key-of-{ROOT_RULE}")
    assert "keeps its keys" in caplog.text
    caplog.clear()
    Life(disk, tmp_path, declared("shop"))
    assert not caplog.records


@pytest.mark.promise("M5")
def test_rules_of_data_that_do_not_say_who_declared_them_came_from_a_file(tmp_path: Path) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, declared("shop"))
    rules = [rule.to_dict() for rule in life.namespace.access_rules]
    life.store.append(NamespacePut(1, json.dumps({"created_at": NOW, "access_rules": rules})))
    life.commit()

    assert Life(disk, tmp_path, declared("audit")).names == [ROOT_RULE, "audit"]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("Name", "a b", "'a b'"),
        ("Name", "\ud800", r"'\ud800'"),
        ("Name", ".hidden", "'.hidden'"),
        ("PrimaryKey", "secret\ud800", "position 7"),
        ("SecondaryKey", "secret;", "position 7"),
        ("PrimaryKey", "secret key", "position 7"),
    ],
)
def test_a_name_or_key_that_clients_cannot_use_is_refused_with_its_place(
    field: str, value: str, told: str
) -> None:
    text = json.dumps({"PairBus": {"AccessRules": [{"Name": "shop", "Rights": ["Send"], field: value}]}})
    with pytest.raises(UsageError) as caught:
        read_declarations(text, lambda _form, _name: "")

    assert "AccessRules" in str(caught.value)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.promise("M5")
def test_the_root_rule_has_all_rights_whatever_the_file_declares(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = json.dumps({"PairBus": {"AccessRules": [{"Name": ROOT_RULE, "Rights": ["Send"]}]}})
    fewer = replace(read_declarations(text, lambda _form, _name: ""), file="Config.json")
    disk = MemoryDisk()
    root_key = Life(disk, tmp_path, declared()).root_key

    with caplog.at_level(logging.WARNING):
        life = Life(disk, tmp_path, fewer)

    (root,) = life.namespace.access_rules
    assert set(root.rights) == set(RIGHTS)
    assert root.primary_key == root_key
    assert [vars(record)["event"] for record in caplog.records] == ["config.root_rights"]


@pytest.mark.promise("M5")
def test_a_store_whose_root_rule_lost_its_rights_or_its_key_gets_them_back_at_the_start(
    tmp_path: Path,
) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, Declarations())
    (root,) = life.namespace.access_rules
    life.namespace.set_access_rules((replace(root, rights=("Send",), primary_key="\ud800"),), NOW)
    life.commit()

    (mended,) = Life(disk, tmp_path, Declarations()).namespace.access_rules
    assert set(mended.rights) == set(RIGHTS)
    assert len(mended.primary_key) == 44
    assert mended.secondary_key == root.secondary_key
    (kept,) = Life(disk, tmp_path, Declarations()).namespace.access_rules
    assert kept == mended
