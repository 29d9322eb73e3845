"""Under fire: an administrator who makes, changes and deletes entities, rules and access rules, and reads them back.

Each piece of configuration is a register in the history: what was written last and confirmed must be what is read.
A queue carries its incarnation in its user metadata, so that a message that outlived a deletion can be told (B16).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    ServiceBusAdministrationClient,
    SqlRuleFilter,
)

from tests.soak.kill_history import Operation, Outcome, Place
from tests.soak.kill_load import Actor, Yard, body_of, peek_all, read_body

DESKS = ("desk-0", "desk-1", "desk-2")
RULED, GUARDED = "ruled", "guarded"
SUBSCRIPTION = "s"
RULES_MAX = 6


def configuration() -> dict[str, Any]:
    """What must be there from the start, in the words of the emulator's configuration."""
    subscription = {"Name": SUBSCRIPTION, "Properties": {}, "Rules": []}
    return {"Topics": [{"Name": RULED, "Properties": {}, "Subscriptions": [subscription]}]}


def queues() -> list[Any]:
    """The queue whose access rules change."""
    from pairbus.testing import Queue

    return [Queue(GUARDED)]


class Clerk(Actor):
    """The only one who changes these entities, so every read has few possible answers."""

    def __init__(self, yard: Yard, name: str) -> None:
        super().__init__(yard, name)
        self._sent: dict[str, list[str]] = defaultdict(list)
        """Uids by the incarnation they were sent to, until it is known to be gone."""
        self._serial = 0
        # The one piece that is there from the start.
        yard.history.add(
            Operation.CONFIGURE,
            yard.history.now(),
            actor=name,
            session="rules",
            value=json.dumps({"$Default": "1=1"}),
        )

    def work(self, client: ServiceBusClient) -> None:
        with self.admin() as admin:
            while self.goes_on():
                step = self.random.choices((self.keep_desk, self.keep_rules, self.keep_access), (4, 2, 1))[0]
                step(admin, client)
                self.pause(0.03)

    def admin(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.yard.connection_string, connection_verify=self.yard.ca_file, retry_total=0
        )

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    # -- registers -----------------------------------------------------------------------------

    def read(self, key: str, call: Callable[[], str]) -> str:
        """Read a piece of configuration and write down what was read; an error is no reading."""
        began = self.yard.history.now()
        try:
            value = call()
        except ResourceNotFoundError:
            value = ""
        self.yard.history.add(Operation.READ_CONFIGURATION, began, actor=self.name, session=key, value=value)
        return value

    def write(self, key: str, value: str, call: Callable[[], Any], uids: list[str] | None = None) -> None:
        """Change it; ``uids``: messages that go with the entity."""
        began = self.yard.history.now()
        outcome, error = Outcome.OK, None
        try:
            call()
        except Exception as caught:  # noqa: BLE001  every error is an outcome here
            is_refusal = isinstance(caught, HttpResponseError) and 400 <= (caught.status_code or 0) < 500
            outcome, error = Outcome.FAIL if is_refusal else Outcome.UNKNOWN, caught
        history = self.yard.history
        history.add(Operation.CONFIGURE, began, actor=self.name, session=key, value=value, outcome=outcome)
        for uid in uids or ():
            history.add(Operation.REMOVE, began, actor=self.name, uid=uid, outcome=outcome)
        if error is not None:
            raise error

    # -- queues that come and go ---------------------------------------------------------------

    def keep_desk(self, admin: ServiceBusAdministrationClient, client: ServiceBusClient) -> None:
        name = self.random.choice(DESKS)
        key = f"queue {name}"
        text = self.read_desk(admin, name)
        if not text:
            value = f"{self.serial()}.0"
            self.write(
                key,
                value,
                lambda: admin.create_queue(name, user_metadata=value, requires_duplicate_detection=True),
            )
            return
        incarnation, _, revision = text.partition(".")
        entity = f"{name}#{incarnation}"
        choice = self.random.random()
        if choice < 0.45:
            self.fill(client, name, entity)
        elif choice < 0.6:
            self.look(client, name, entity, Operation.DELIVERY)
        elif choice < 0.8:
            value = f"{incarnation}.{int(revision) + 1}"
            properties = admin.get_queue(name)
            properties.user_metadata = value
            self.write(key, value, lambda: admin.update_queue(properties))
        else:
            self.write(key, "", lambda: admin.delete_queue(name), list(self._sent[entity]))

    def read_desk(self, admin: ServiceBusAdministrationClient, name: str) -> str:
        """Its metadata; what was sent to incarnations that are gone is known to be gone from here on."""
        began = self.yard.history.now()
        text = self.read(f"queue {name}", lambda: admin.get_queue(name).user_metadata or "")
        current = f"{name}#{text.partition('.')[0]}" if text else ""
        for entity in [e for e in self._sent if e.startswith(f"{name}#") and e != current]:
            for uid in self._sent.pop(entity):
                self.yard.history.add(Operation.REMOVE, began, actor=self.name, uid=uid)
        return text

    def fill(self, client: ServiceBusClient, name: str, entity: str) -> None:
        """Send with message ids that every incarnation uses anew: a history that survived would swallow them."""
        with client.get_queue_sender(name) as sender:
            for _ in range(self.random.randint(1, 3)):
                place = len(self._sent[entity]) + 1
                uid = f"{entity}-{place}"
                self._sent[entity].append(uid)
                message = ServiceBusMessage(body_of(uid, 200), message_id=f"m{place}")
                line = {"entity": entity, "uid": uid}
                self.tell(Operation.SEND, partial(sender.send_messages, message), [line])

    def look(self, client: ServiceBusClient, name: str, entity: str, operation: Operation) -> None:
        """Write down every message that lies there."""
        began = self.yard.history.now()
        with client.get_queue_receiver(name) as receiver:
            for message in peek_all(receiver):
                uid, is_intact = read_body(b"".join(message.body))
                self.yard.history.add(
                    operation,
                    began,
                    actor=self.name,
                    entity=entity,
                    uid=uid,
                    is_intact=is_intact,
                    sequence_number=message.sequence_number,
                    place=Place.MAIN,
                )

    # -- rules and access rules ----------------------------------------------------------------

    def read_rules(self, admin: ServiceBusAdministrationClient) -> dict[str, str]:
        def call() -> str:
            rules = {}
            for rule in admin.list_rules(RULED, SUBSCRIPTION):
                assert isinstance(rule.filter, SqlRuleFilter), rule.name
                rules[rule.name] = rule.filter.sql_expression
            return json.dumps(rules, sort_keys=True)

        return dict(json.loads(self.read("rules", call)))

    def keep_rules(self, admin: ServiceBusAdministrationClient, client: ServiceBusClient) -> None:
        rules = self.read_rules(admin)
        expression = f"n = {self.serial()}"
        choice = self.random.random()
        if not rules or (choice < 0.4 and len(rules) < RULES_MAX):
            name = f"rule-{self.serial()}"
            after = {**rules, name: expression}
            self.write_rules(
                after, lambda: admin.create_rule(RULED, SUBSCRIPTION, name, filter=SqlRuleFilter(expression))
            )
            return
        name = self.random.choice(sorted(rules))
        if choice < 0.7:
            rule = admin.get_rule(RULED, SUBSCRIPTION, name)
            rule.filter = SqlRuleFilter(expression)
            self.write_rules(
                {**rules, name: expression}, lambda: admin.update_rule(RULED, SUBSCRIPTION, rule)
            )
            return
        del rules[name]
        self.write_rules(rules, lambda: admin.delete_rule(RULED, SUBSCRIPTION, name))

    def write_rules(self, rules: dict[str, str], call: Callable[[], Any]) -> None:
        self.write("rules", json.dumps(rules, sort_keys=True), call)

    def read_access(self, admin: ServiceBusAdministrationClient) -> str:
        def call() -> str:
            rules = admin.get_queue(GUARDED).authorization_rules or []
            return " ".join(f"{rule.key_name}:{rule.primary_key}" for rule in rules)

        return self.read("access", call)

    def keep_access(self, admin: ServiceBusAdministrationClient, client: ServiceBusClient) -> None:
        self.read_access(admin)
        key = f"key-{self.serial()}"
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=[AccessRights.SEND],
            key_name="r",
            primary_key=key,
            secondary_key="other",
        )
        properties = admin.get_queue(GUARDED)
        properties.authorization_rules = [rule]
        self.write("access", f"r:{key}", lambda: admin.update_queue(properties))

    # -- the end -------------------------------------------------------------------------------

    def close_books(self, client: ServiceBusClient) -> None:
        """Read everything once more, when nothing is killed any longer."""
        with self.admin() as admin:
            for name in DESKS:
                text = self.read_desk(admin, name)
                if text:
                    self.look(client, name, f"{name}#{text.partition('.')[0]}", Operation.DRAINED)
            self.read_rules(admin)
            self.read_access(admin)
