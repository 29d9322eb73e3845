"""What an audit log looks like, and what each of its rows says about a message. Both engines read it by these rules.

A message is known by (destination, message id, hash of its body). Paths are compared without regard to case; a subscription's messages
were sent to its topic; a backlog queue's messages have their destination beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pairbus.errors import UsageError
from pairbus.reports.columns import INTEGERS, TEXTS, TIMES
from pairbus.reports.inputs import Inputs, Wanted

SENT: Final = "sent"
RECEIVED: Final = "received"
BACKLOG: Final = "backlog"
DEAD_LETTER: Final = "dead-letter"
SPOOL: Final = "spool"
ROLES: Final = (SENT, RECEIVED, BACKLOG, DEAD_LETTER, SPOOL)

DUPLICATE: Final = "duplicate"
"""Accepted and not stored: the entity had accepted a message with this id before."""
SENDS: Final = ("sent", "accepted", DUPLICATE)
DELIVERIES: Final = ("completed", "received-and-deleted", "received", "delivered")
HELD: Final = ("held", "active", "peeked", "deferred", "scheduled", "locked")
DEAD_LETTERED: Final = "dead-lettered"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
FORWARDED: Final = "forwarded"
"""Auto-forwarding took it on to the entity that ``detail`` names. No row tells that the message came there."""
REDRIVEN: Final = "redriven"
"""``detail`` of a send that put a dead letter back into its backlog queue: no sender was told of it."""
REMOVED: Final = (CANCELLED, "purged", FORWARDED)
ENTITY_DELETED: Final = "entity-deleted"
AUDIT_BEGUN: Final = "audit-begun"
AUDIT_STOPPED: Final = "audit-stopped"
AUDIT_RESUMED: Final = "audit-resumed"
NOTES: Final = (AUDIT_BEGUN, AUDIT_STOPPED, AUDIT_RESUMED)
"""In these rows an audit log speaks of itself; they name no message and no entity."""
KINDS: Final = (*SENDS, *DELIVERIES, *HELD, DEAD_LETTERED, EXPIRED, *REMOVED, ENTITY_DELETED, *NOTES)
DRAINED: Final = "completed"
"""How a drain takes a message out of the backlog when the primary has accepted it."""
KIND_DEFAULTS: Final = {
    SENT: "sent",
    RECEIVED: "received",
    BACKLOG: "held",
    DEAD_LETTER: "held",
    SPOOL: "held",
}
"""What a row without a kind means in each input."""
REASON_EXPIRED: Final = "TTLExpiredException"

KEY: Final = ("destination", "message_id", "body")
DELIVERED_TOPIC: Final = "delivered_topic"
MEASURES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    SENT: (
        "sent_backlog",
        "redriven",
        "sent_direct",
        "direct_outside",
        "direct_apart",
        "parked_again",
        "direct_again",
        "sent_older",
        "sent_logged",
    ),
    RECEIVED: (
        "stored",
        "delivered",
        DELIVERED_TOPIC,
        "dead_there",
        "dead_taken",
        "expired_there",
        "cancelled_there",
        "stored_outside",
        "stored_apart",
        "forwarded_in",
        "by_way",
        "dropped",
        "sent_older",
        "ended_older",
        "ended_older_topic",
    ),
    BACKLOG: (
        "parked",
        "backlog",
        "aside",
        "expired",
        "cancelled",
        "entered",
        "entered_again",
        "drained",
        "taken",
        "drained_older",
        "taken_older",
        "backlog_listed",
        "aside_listed",
    ),
    DEAD_LETTER: ("parked", "aside_listed", "expired_listed", "dead", "dead_expired"),
    SPOOL: ("spool",),
}
"""What the rows of each input can say about a message. ``redriven`` and ``entered_again`` are said in place of ``sent_backlog`` and ``entered`` of a dead letter that was put back. ``forwarded_in`` is said of the target of a forwarding. ``direct_outside`` and ``stored_outside`` are said only of messages without an id: sends
and arrivals at the destination that the drain cannot have made, because they were before the first of them was parked or after the last was drained. Nor
are ``parked_again`` and ``direct_again`` said of others: sends after the first of them was dead-lettered, to the backlog, and to the destination after the last was
drained.
"""
OUTSIDE: Final = {"direct_outside": "sent_direct", "stored_outside": "stored"}
"""Which rows they count."""
APART: Final = {"direct_apart": "sent_direct", "stored_apart": "stored"}
"""Of the same rows those that the drain cannot have made, if each copy that it completed was sent once, while it was in the backlog: see ``arrow.drains``."""
AGAIN: Final = {"parked_again": "sent_backlog", "direct_again": "sent_direct"}
"""The same of sends that may be of a message that somebody took out of a dead-letter queue of the backlog."""
BY_WAY: Final = "by_way"
"""How many of the copies that were forwarded to an entity were sent to it by way of another one. It is found when the rows of all entities are seen together."""
OLDER: Final = (
    "sent_older", "sent_logged", "ended_older", "ended_older_topic", "drained_older", "taken_older",
)  # fmt: skip
"""What is said of copies that were accepted before the time that is asked about, so that their later rows do not stand for others: see ``arrow.older``."""
TOPICS: Final = (DELIVERED_TOPIC, "ended_older_topic")
"""What each subscription of a topic says: the one with the most counts."""
LISTED: Final = ("backlog_listed", "aside_listed", "expired_listed", "dead", "dead_expired")
"""What a listing says. The same place and sequence number is the same message, however often it is listed."""
MEASURES: Final = tuple(dict.fromkeys(name for names in MEASURES_OF.values() for name in names))
PLACES: Final = ("set_aside", "dead_lettered", "expired", "cancelled", "in_backlog", "in_spool")
"""The fates of copies that did not arrive. Each takes of the missing copies what those before it left."""
LEAST: Final = {
    "backlog_ms": ("ms", ("sent_backlog", "redriven")),
    "direct_ms": ("ms", ("sent_direct",)),
    "spool_ms": ("ms", ("spool",)),
    "stored_ms": ("ms", ("stored",)),
    "delivered_ms": ("ms", ("delivered", DELIVERED_TOPIC)),
    "aside_ms": ("ms", ("aside",)),
    "first_cancelled_ms": ("ms", ("cancelled_there",)),
    "stored_sequence": ("sequence_number", ("stored",)),
}
"""The least of a column over the rows that say one of these."""
GREATEST: Final = {
    "last_backlog_ms": ("ms", ("sent_backlog",)),
    "last_direct_ms": ("ms", ("sent_direct",)),
    "cancelled_ms": ("ms", ("cancelled_there",)),
    "drained_ms": ("ms", ("drained",)),
}
"""The greatest."""
DELETABLE: Final = ("backlog", "aside", "backlog_listed", "aside_listed")
"""What is in the backlog, and goes with the queue it is in. The rows of a backlog queue up to its last ``entity-deleted`` say nothing of
these: what has not left before was destroyed. What arrived, expired or was cancelled before stays so.
"""
DEAD_LETTER_PATH: Final = "/$deadletterqueue"
SUBSCRIPTIONS_PATH: Final = "/subscriptions/"
TRANSFER_PATH: Final = "/x-servicebus-transfer/"
TRANSFER_DEAD_PATH: Final = "/$transfer"
BACKLOG_PATTERN: Final = r"^[^/]+/x-servicebus-transfer/[0-9]+(/[$]transfer)?(/[$]deadletterqueue)?$"
AUDIT: Final = Wanted(
    what="audit log of messages",
    folder="messages-audit",
    columns={"message_id": TEXTS, "entity": TEXTS, "time": TIMES},
    optional={
        **dict.fromkeys(
            ("kind", "destination", "sha256", "body_sha256", "detail", "namespace", "session_id"), TEXTS
        ),
        "sequence_number": INTEGERS,
    },
    time_column="time",
    remedy="run the broker with --audit",
    local_rows_max=1_000_000,  # about 1 GB: memory holds all rows
    order=(SENT, SPOOL, DEAD_LETTER, BACKLOG, RECEIVED),
)
COLUMNS: Final = (
    "kind", "message_id", "entity", "destination", "sequence_number", "time", "sha256", "body_sha256", "detail", "namespace", "session_id"
)  # fmt: skip

NOT_JSON: Final = "not a row of JSON with these columns"
BAD_KIND: Final = "kind is not known"
NO_TIME: Final = "time is missing or no time"
NO_ID: Final = "message_id is missing"
NO_DESTINATION: Final = "neither destination nor entity"
NO_HASH: Final = "no SHA-256 of the body (--no-body-hash compares without)"


def check_whole(inputs: Mapping[str, Inputs]) -> None:
    """Refuse damaged files: a certificate needs every one.

    Raises:
        UsageError: A file is damaged.
    """
    for found in inputs.values():
        for path, why in found.damaged.items():
            raise UsageError(
                f"{path} cannot be read ({why}): a certificate needs every file; take it away if it does not belong here"
            )
