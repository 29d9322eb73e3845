"""The judge of a run with kills: a history of what clients were told, in; a verdict, out. Pure.

The outcome of every operation is OK (a positive reply was seen), FAIL (a definite refusal was seen) or UNKNOWN
(the connection or the process died first). UNKNOWN is never treated as either of the others: what it may have done
is allowed, what it cannot have done is not. Sound by construction: a violation in the verdict is one for certain.

Rule 1: an event's index is the moment its reply was seen; ``began`` is the index at which the call was started. Only
        a call that began after a reply was seen can contradict that reply.
Rule 2: the history ends with a full drain, so each stored message has been seen by somebody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """What the client was told."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Operation(Enum):
    """What the client did."""

    SEND = "send"
    SCHEDULE = "schedule"
    CANCEL = "cancel"
    DELIVERY = "delivery"
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    SET_STATE = "set-state"
    GET_STATE = "get-state"
    CONFIGURE = "configure"
    READ_CONFIGURATION = "read-configuration"
    REMOVE = "remove"
    """Gone with its entity, which an administrator deleted."""
    DRAINED = "drained"
    KILL = "kill"


class Place(Enum):
    """Where a message was seen."""

    MAIN = "main"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of the history."""

    index: int
    began: int
    actor: str
    operation: Operation
    entity: str = ""
    uid: str = ""
    outcome: Outcome = Outcome.OK
    sequence_number: int | None = None
    delivery_count: int = 0
    place: Place = Place.MAIN
    batch: str = ""
    """What has the same batch happens whole or not at all: one transfer, one publish, one transaction."""
    promise: str = "B13"
    """The promise that makes the batch one."""
    order: int = 0
    """The place inside its batch."""
    is_intact: bool = True
    """Whether a delivered body was what its uid says it must be."""
    session: str = ""
    """A session, or the name of a piece of configuration."""
    value: str = ""
    """A session's state, or what the configuration says; empty: not there."""
    at_ms: int = 0
    """The wall clock when the reply was seen."""
    due_ms: int = 0
    """When a scheduled message falls due."""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken, by its number."""

    promise: str
    uid: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise} {self.uid}: {self.text}"


@dataclass(frozen=True)
class Verdict:
    """What the history shows."""

    violations: list[Violation]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not self.violations

    def summary(self) -> str:
        """For people: the counts, then every violation (the first hundred)."""
        lines = [f"{name:>28}: {number}" for name, number in self.counts.items()]
        lines += [f"VIOLATION {violation}" for violation in self.violations[:100]]
        lines.append("verdict: " + ("clean" if self.is_clean else f"{len(self.violations)} violations"))
        return "\n".join(lines)


SENDS = (Operation.SEND, Operation.SCHEDULE)
SIGHTINGS = (Operation.DELIVERY, Operation.DRAINED)
ENDINGS = (Operation.COMPLETE, Operation.CANCEL, Operation.REMOVE)
END_PROMISES = {Operation.COMPLETE: "B5", Operation.CANCEL: "B46", Operation.REMOVE: "B16"}
REGISTERS = (
    ("B53", Operation.SET_STATE, Operation.GET_STATE, "state"),
    ("B16", Operation.CONFIGURE, Operation.READ_CONFIGURATION, "configuration"),
)
"""What is written and read as a whole: the promise, how it is written, how it is read, and its name."""
NOT_REFUSED = (Outcome.OK, Outcome.UNKNOWN)


class Index:
    """The history arranged by message."""

    def __init__(self, history: Iterable[Event]) -> None:
        self.events = sorted(history, key=lambda event: event.index)
        self.by_uid: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.uid:
                self.by_uid[event.uid].append(event)

    def of(self, uid: str, *operations: Operation) -> list[Event]:
        return [event for event in self.by_uid[uid] if event.operation in operations]


def judge(history: Iterable[Event]) -> Verdict:
    """Hold a drained history against the promises."""
    index = Index(history)
    violations: list[Violation] = []
    for uid in index.by_uid:
        violations += judge_existence(index, uid)
        violations += judge_after_the_end(index, uid)
        violations += judge_place(index, uid)
        violations += judge_counts(index, uid)
        violations += judge_numbers_of_one(index, uid)
        violations += judge_schedule(index, uid)
    violations += judge_numbers_of_all(index)
    violations += judge_order_of_acceptance(index)
    violations += judge_batches(index)
    violations += judge_transactions(index)
    violations += judge_registers(index)
    return Verdict(violations, count(index))


def judge_existence(index: Index, uid: str) -> list[Violation]:
    """B1, B2, B3: what was acknowledged is there, what is there was sent, what was refused is not."""
    sends, sightings = index.of(uid, *SENDS), index.of(uid, *SIGHTINGS)
    if not sends:
        return [Violation("B2", uid, f"was seen {len(sightings)} times and never sent")] if sightings else []
    found = []
    if sends[0].outcome is Outcome.FAIL and sightings:
        promise = "B14" if sends[0].promise == "B14" else "B3"
        found.append(Violation(promise, uid, "was refused or rolled back and is there all the same"))
    if any(not event.is_intact for event in sightings):
        found.append(Violation("B2", uid, "its body is not what was sent"))
    is_ended = any(event.outcome in NOT_REFUSED for event in index.of(uid, *ENDINGS))
    is_left = bool(index.of(uid, Operation.DRAINED))
    if sends[0].outcome is Outcome.OK and not is_ended and not is_left:
        where = (
            "was delivered, never completed, and is gone" if sightings else "was acknowledged and never seen"
        )
        found.append(Violation("B1", uid, where))
    return found


def judge_after_the_end(index: Index, uid: str) -> list[Violation]:
    """B5, B46: what was completed or cancelled is not seen by anybody who asks afterwards."""
    for end in index.of(uid, *ENDINGS):
        if end.outcome is not Outcome.OK:
            continue
        for event in index.of(uid, *SIGHTINGS):
            if event.began > end.index:
                text = f"{end.operation.value} was confirmed at {end.index}, seen again at {event.index}"
                return [Violation(END_PROMISES[end.operation], uid, text)]
    return []


def judge_place(index: Index, uid: str) -> list[Violation]:
    """B7, B17, B34, B38: one place at a time, and the place that was confirmed."""
    drained = index.of(uid, Operation.DRAINED)
    found = []
    if len(drained) > 1:
        found.append(
            Violation("B7", uid, f"lies in {len(drained)} places: {[e.place.value for e in drained]}")
        )
    for moved in index.of(uid, Operation.DEAD_LETTER):
        later = [e for e in index.of(uid, *SIGHTINGS) if e.began > moved.index]
        if moved.outcome is Outcome.OK and any(e.place is not Place.DEAD_LETTER for e in later):
            found.append(Violation("B38", uid, "was dead-lettered and is seen outside the dead-letter queue"))
    settlements = index.of(
        uid, Operation.COMPLETE, Operation.ABANDON, Operation.DEFER, Operation.DEAD_LETTER, Operation.DELIVERY
    )
    last = settlements[-1] if settlements else None
    if last and last.operation is Operation.DEFER and last.outcome is Outcome.OK:
        in_doubt = any(e.outcome is Outcome.UNKNOWN for e in settlements)
        wrong = [e.place.value for e in drained if e.place is not Place.DEFERRED]
        if wrong and not in_doubt:
            found.append(Violation("B34", uid, f"was deferred and lies in {wrong}"))
    return found


def judge_counts(index: Index, uid: str) -> list[Violation]:
    """B29: every confirmed abandon and deferral is counted, for ever. (A dead letter that is forwarded begins anew.)"""
    counted = [e for e in index.of(uid, Operation.ABANDON, Operation.DEFER) if e.outcome is Outcome.OK]
    for event in index.of(uid, *SIGHTINGS):
        if event.place is Place.DEAD_LETTER:
            continue
        confirmed = sum(1 for a in counted if a.index < event.began and a.place is not Place.DEAD_LETTER)
        if event.delivery_count < confirmed:
            text = f"{confirmed} abandons and deferrals were confirmed, the delivery count is {event.delivery_count}"
            return [Violation("B29", uid, text)]
    return []


def judge_numbers_of_one(index: Index, uid: str) -> list[Violation]:
    """B19, B24: one number in one entity; a scheduled message gets a second, larger one when it falls due."""
    told = [e for e in index.of(uid, *SIGHTINGS, Operation.SCHEDULE) if e.sequence_number is not None]
    for entity in {e.entity: None for e in told}:
        here = [e for e in told if e.entity == entity]
        seen = {e.sequence_number for e in here if e.sequence_number is not None}
        scheduled = {
            e.sequence_number
            for e in here
            if e.sequence_number is not None
            and (e.operation is Operation.SCHEDULE or e.place is Place.SCHEDULED)
        }
        active = seen - scheduled
        if len(active) > 1 or len(scheduled) > 1:
            return [Violation("B19", uid, f"is stored more than once in {entity}, under {sorted(seen)}")]
        if scheduled and active and min(active) < max(scheduled):
            return [Violation("B24", uid, f"scheduled as {max(scheduled)}, activated as {min(active)}")]
    return []


def judge_schedule(index: Index, uid: str) -> list[Violation]:
    """B44: nothing scheduled is delivered early."""
    for scheduled in index.of(uid, Operation.SCHEDULE):
        for event in index.of(uid, *SIGHTINGS):
            if event.place is not Place.SCHEDULED and event.at_ms < scheduled.due_ms:
                return [
                    Violation("B44", uid, f"delivered {scheduled.due_ms - event.at_ms} ms before its time")
                ]
    return []


def judge_numbers_of_all(index: Index) -> list[Violation]:
    """B19: a number is never given to a second message."""
    owner: dict[tuple[str, int], str] = {}
    found = []
    for event in index.events:
        if event.sequence_number is None or event.operation not in (*SIGHTINGS, Operation.SCHEDULE):
            continue
        first = owner.setdefault((event.entity, event.sequence_number), event.uid)
        if first != event.uid:
            text = f"number {event.sequence_number} of {event.entity} had been given to {first}"
            found.append(Violation("B19", event.uid, text))
    return found


def judge_order_of_acceptance(index: Index) -> list[Violation]:
    """B19: numbers rise in the order of acceptance, here along each sender that waits for each answer."""
    number = {
        (event.uid, event.entity): event.sequence_number
        for event in index.events
        if event.operation in SIGHTINGS and event.sequence_number is not None
    }
    last: dict[tuple[str, str], tuple[int, str]] = {}
    found = []
    sends = [e for e in index.events if e.operation is Operation.SEND and e.outcome is Outcome.OK]
    for event in sorted(sends, key=lambda e: (e.index, e.order)):
        own = number.get((event.uid, event.entity))
        if own is None:
            continue
        before, uid = last.get((event.actor, event.entity), (0, ""))
        if own <= before:
            found.append(
                Violation("B19", event.uid, f"number {own}, though accepted after {uid} with {before}")
            )
        last[event.actor, event.entity] = (own, event.uid)
    return found


def judge_batches(index: Index) -> list[Violation]:
    """B13, B14, B15: all of a batch was stored or nothing. Every stored message was seen, so seen is stored."""
    batches: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event in index.events:
        if event.operation is Operation.SEND and event.batch:
            batches[event.promise, event.batch].append(event.uid)
    found = []
    for (promise, batch), uids in batches.items():
        stored = [uid for uid in uids if index.of(uid, *SIGHTINGS)]
        if stored and len(stored) != len(uids):
            found.append(Violation(promise, batch, f"{len(stored)} of {len(uids)} messages are stored"))
    return found


def judge_transactions(index: Index) -> list[Violation]:
    """B14: what a transaction took is gone exactly when what it sent is there.

    Of a commit in doubt only the end of the history speaks: what is drained was not taken.
    """
    work: dict[str, list[Event]] = defaultdict(list)
    for event in index.events:
        if event.promise == "B14" and event.batch and event.outcome is not Outcome.FAIL:
            work[event.batch].append(event)
    found = []
    for batch, events in work.items():
        sent = [e.uid for e in events if e.operation is Operation.SEND]
        taken = [e.uid for e in events if e.operation is Operation.COMPLETE]
        stored = [uid for uid in sent if index.of(uid, *SIGHTINGS)]
        left = [uid for uid in taken if index.of(uid, Operation.DRAINED)]
        gone = [
            uid for uid in taken if not index.of(uid, Operation.DRAINED) and is_only_end(index, uid, batch)
        ]
        if stored and left:
            found.append(Violation("B14", batch, f"stored {stored[0]}, but {left[0]} was not taken"))
        if left and gone:
            found.append(Violation("B14", batch, f"took {gone[0]}, but not {left[0]}"))
        if sent and not stored and gone:
            found.append(Violation("B14", batch, f"took {gone[0]}, but {sent[0]} is not there"))
    return found


def is_only_end(index: Index, uid: str, batch: str) -> bool:
    """Whether nothing but this transaction can have ended the message."""
    ends = [e for e in index.of(uid, *ENDINGS) if e.outcome in NOT_REFUSED]
    return all(e.batch == batch for e in ends)


def judge_registers(index: Index) -> list[Violation]:
    """B53, B16, B17: a reader sees what was confirmed last, or what was in doubt at that time."""
    found = []
    for promise, write, read, name in REGISTERS:
        told: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in index.events:
            if event.operation in (write, read) and event.outcome is not Outcome.FAIL:
                told[event.entity, event.session].append(event)
        for (_, key), events in told.items():
            for event in events:
                if event.operation is not read or event.outcome is not Outcome.OK:
                    continue
                possible = possible_values(events, event, write)
                if event.value not in possible:
                    text = f"{name} {event.value!r} was read; only {sorted(possible)} can be"
                    found.append(Violation(promise, key, text))
    return found


def possible_values(events: list[Event], read: Event, write: Operation) -> set[str]:
    """The value known last before the read began, and every write that is not certainly older than that."""
    known = [e for e in events if e.outcome is Outcome.OK and e.index < read.began]
    last = max(known, key=lambda e: e.index, default=None)
    possible = {last.value if last else ""}
    for event in events:
        is_older = last is not None and event.index < last.began
        if event.operation is write and event.began < read.index and not is_older:
            possible.add(event.value)
    return possible


def count(index: Index) -> dict[str, int]:
    """The sets of the definitions, as numbers."""
    told = Counter((e.operation, e.outcome) for e in index.events)
    seen = {e.uid for e in index.events if e.operation in SIGHTINGS}
    in_doubt = {e.uid for e in index.events if e.operation in SENDS and e.outcome is Outcome.UNKNOWN}
    accepted = {e.uid for e in index.events if e.operation in SENDS and e.outcome is Outcome.OK}
    batches = Counter(
        promise
        for promise, _ in {(e.promise, e.batch) for e in index.events if e.batch and e.operation in SENDS}
    )
    deliveries = Counter(e.uid for e in index.events if e.operation is Operation.DELIVERY)
    numbers: dict[str, int] = {
        "kills": told[Operation.KILL, Outcome.OK],
        "sends acknowledged": len(accepted),
        "sends in doubt": len(in_doubt),
        "of these stored": len(in_doubt & seen),
        "batches": batches["B13"],
        "publishes": batches["B15"],
        "transactions": batches["B14"],
        "deliveries": sum(deliveries.values()),
        "delivered more than once": sum(1 for n in deliveries.values() if n > 1),
        "drained at the end": told[Operation.DRAINED, Outcome.OK],
    }
    for operation in (
        Operation.COMPLETE,
        Operation.ABANDON,
        Operation.DEFER,
        Operation.DEAD_LETTER,
        Operation.SCHEDULE,
        Operation.CANCEL,
        Operation.SET_STATE,
        Operation.CONFIGURE,
        Operation.REMOVE,
    ):
        numbers[f"{operation.value} ok"] = told[operation, Outcome.OK]
        numbers[f"{operation.value} in doubt"] = told[operation, Outcome.UNKNOWN]
    return numbers
