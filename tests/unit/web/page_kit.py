"""A page on a broker in memory, asked without sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.whole import encode_message
from pairbus.engine.rules.codec import rule_to_json
from pairbus.engine.rules.subscription import Rule, TrueFilter
from pairbus.gateway.broker import Broker
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.model.access import LISTEN, MANAGE, SEND, AccessRule
from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC, Settings
from pairbus.server.assemble import Assembly, assemble
from pairbus.server.config.options import MEMORY, Options
from pairbus.web.page import Page

NOW = 1_800_000_000_000
KEYS = {"listener": "L" * 44, "sender": "S" * 44, "manager": "M" * 44}
RIGHTS = {"listener": (LISTEN,), "sender": (SEND,), "manager": (LISTEN, SEND, MANAGE)}
ENTITY_KEY = "E" * 44


class Bench:
    """One namespace: queues ``orders`` and ``other``, topic ``events`` with ``all``, and rules of each strength."""

    def __init__(self, data: Path, *, faults: bool = True) -> None:
        self.secrets = (f"secret-{number}" for number in count(1))
        self.audits: list[tuple[str, ...]] = []
        self.page = Page(lambda: next(self.secrets))
        self.now = NOW
        options = Options(namespace="contoso", data=data, store=MEMORY, faults=faults)
        self.assembly: Assembly = self.page.assembling(assemble)(options, NOW)
        assert isinstance(self.assembly.broker, Broker)
        self.broker: Broker = self.assembly.broker
        self.broker._on_audit = lambda *record: self.audits.append(record)
        self.broker._on_refusal = lambda *record: self.audits.append(record)
        namespace = self.broker.namespace
        rules = tuple(
            AccessRule(name=name, rights=RIGHTS[name], primary_key=key, secondary_key=key[:-1] + "2")
            for name, key in KEYS.items()
        )
        namespace.set_access_rules((*namespace.access_rules, *rules), NOW)
        own = AccessRule(name="own", rights=(LISTEN, SEND), primary_key=ENTITY_KEY, secondary_key="e" * 44)
        namespace.create(QUEUE, "orders", replace(Settings(), access_rules=(own,)), NOW)
        namespace.create(QUEUE, "other", Settings(), NOW)
        namespace.create(TOPIC, "events", Settings(), NOW)
        everything = json.dumps(rule_to_json(Rule("$Default", TrueFilter())))
        namespace.create(
            SUBSCRIPTION, "events/Subscriptions/all", replace(Settings(), rules=(everything,)), NOW
        )

    def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        secure: bool = False,
    ) -> HttpResponse:
        given = {"content-type": "application/json", **(headers or {})}
        content = b"" if body is None else json.dumps(body).encode()
        answer = self.page(HttpRequest(method, target, given, content, "127.0.0.1:5555", secure), self.now)
        assert answer is not None, f"the page leaves {target} to the broker"
        return answer

    def sign_in(self, rule: str = "manager", key: str | None = None, entity: str | None = None) -> Visitor:
        wish = {"rule": rule, "key": KEYS.get(rule, "") if key is None else key, "entity": entity}
        answer = self.ask("POST", "/$page/sign-in", wish)
        assert answer.status == 200, answer.body
        cookie = dict(answer.headers)["Set-Cookie"].partition(";")[0]
        return Visitor(self, cookie, json.loads(answer.body)["token"])

    def store(self, path: str, body: bytes = b"x", **fields: Any) -> int:
        entity = self.broker.namespace.find(path)
        assert entity is not None
        payload = encode_message(body=body, body_kind="data", **fields)
        return self.broker.namespace.send(entity, scan(payload, True), self.now)

    def kill_all(self, path: str, reason: str | None = "Broken", description: str | None = "twice") -> None:
        """Dead-letter everything in a queue."""
        entity = self.broker.namespace.find(path)
        assert entity is not None
        for message in list(entity.main.messages.values()):
            entity.main.move_to_dead_letter(message, reason, description, b"", NOW)

    def defer_one(self, path: str) -> None:
        """Receive the first message of a queue and put it off."""
        entity = self.broker.namespace.find(path)
        assert entity is not None
        message = entity.main.ready.first()
        assert message is not None
        entity.main.ready.take(message)
        entity.main.defer(entity.main.lock(message, None, self.now), b"", self.now)


class Visitor:
    """A signed-in browser."""

    def __init__(self, bench: Bench, cookie: str, token: str) -> None:
        self._bench = bench
        self.cookie = cookie
        self.token = token

    def get(self, target: str, **headers: str) -> HttpResponse:
        return self._bench.ask("GET", target, None, {"cookie": self.cookie, **headers})

    def post(self, target: str, body: object) -> HttpResponse:
        return self._bench.ask("POST", target, body, {"cookie": self.cookie, "x-pairbus-token": self.token})

    def read(self, target: str) -> Any:
        answer = self.get(target)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)
