"""What a drain remembers of another backlog queue against that queue itself, whatever is stored, completed and looked at."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.drain.lookups.queue_view import QueueView
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen
from pairbus.pairing.parking import Follows

PAGE = 3
ANY = Follows("followed")


@dataclass
class _Queue:
    """A backlog queue that is followed, and a drain that knows it by its view."""

    view: QueueView = field(default_factory=lambda: QueueView("followed"))
    stored: dict[int, Seen] = field(default_factory=dict)
    now_ms: int = 0
    last: int = 0
    received: int = 0
    received_ms: int = 0

    def store(self, session: str, step_ms: int) -> None:
        self.now_ms += step_ms
        self.last += 1
        self.stored[self.last] = Seen(self.last, "orders", session, self.now_ms)

    def receive(self) -> None:
        """A message of the drain's own queue, stored now."""
        self.received += 1
        self.received_ms = self.now_ms

    def page(self, start: int) -> list[Seen]:
        return [self.stored[number] for number in sorted(self.stored) if number >= start][:PAGE]

    def browse_on(self, completed_meanwhile: list[int]) -> None:
        view, start = self.view, self.view.next_number
        received = {"own": self.received}
        view.asking()
        page = self.page(start)
        for number in completed_meanwhile:
            self.complete(number, is_own=True)
        if not view.answered(start, page):
            self.view = QueueView("followed")
        elif not page:
            first = self.page(1)[:1]
            if view.starts_with(first[0] if first else None):
                view.ended(received, self.received_ms)
            else:
                self.view = QueueView("followed")

    def look_again(self, session: str) -> None:
        first = self.view.first_before(self.asking(session), ANY)
        if first is not None:
            self.view.asking()
            if not self.view.answered(first, self.page(first)):
                self.view = QueueView("followed")

    def complete(self, place: int, *, is_own: bool) -> None:
        if self.stored:
            number = sorted(self.stored)[place % len(self.stored)]
            del self.stored[number]
            if is_own:
                self.view.completed([number])

    def make_again(self) -> None:
        self.stored.clear()
        self.last = 0

    def asking(self, session: str) -> BacklogMessage:
        message = BacklogMessage("own", self.received, "orders", b"", "m", session, None, 0)
        message.enqueued_ms = self.received_ms
        return message


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.sampled_from("ab"), st.integers(0, 2)),
        st.tuples(st.just("receive")),
        st.tuples(st.just("browse"), st.lists(st.integers(0, 9), max_size=2)),
        st.tuples(st.just("look"), st.sampled_from("ab")),
        st.tuples(st.just("complete"), st.integers(0, 9), st.booleans()),
    ),
    max_size=30,
)


def _run(queue: _Queue, steps: list[tuple[object, ...]]) -> None:
    names = {
        "store": queue.store,
        "receive": queue.receive,
        "browse": queue.browse_on,
        "look": queue.look_again,
    }
    for name, *given_ in steps:
        if name == "complete":
            queue.complete(given_[0], is_own=given_[1])  # type: ignore[arg-type]
        else:
            names[str(name)](*given_)  # type: ignore[operator]
        for session in "ab":
            message = queue.asking(session)
            if queue.view.needs_ms(message, ANY) is None and queue.view.first_before(message, ANY) is None:
                older = [
                    one
                    for one in queue.stored.values()
                    if one.order_key == session and (one.enqueued_ms or 0) < queue.received_ms
                ]
                assert not older, "P14: a message that is waited for no longer is still there"


def _settle(queue: _Queue) -> None:
    """Look until the view answers: what is left to wait for is what the queue has."""
    for session in "ab":
        message = queue.asking(session)
        for _ in range(100):
            if queue.view.needs_ms(message, ANY) is not None:
                queue.browse_on([])
            elif queue.view.first_before(message, ANY) is not None:
                queue.look_again(session)
        first = queue.view.first_before(message, ANY)
        assert first is None or first in queue.stored, "a message that is done is waited for"
        assert queue.view.needs_ms(message, ANY) is None


@example([("store", "a", 1), ("receive",), ("browse", []), ("browse", []), ("complete", 0, False)])
@given(_steps)
def test_nothing_that_is_in_the_queue_is_taken_for_done_and_what_is_done_is_found_out(
    steps: list[tuple[object, ...]],
) -> None:
    queue = _Queue()
    _run(queue, steps)
    _settle(queue)


@example([("store", "a", 1), ("store", "a", 1), ("receive",), ("browse", []), ("complete", 0, True)], ["b"])
@example([("store", "a", 1), ("receive",), ("browse", [])], ["b"])
@given(_steps, st.lists(st.sampled_from("ab"), min_size=1, max_size=5))
def test_a_queue_that_was_deleted_and_made_again_is_known_anew(
    steps: list[tuple[object, ...]], sessions: list[str]
) -> None:
    queue = _Queue()
    _run(queue, steps)
    queue.make_again()
    for session in sessions:
        queue.store(session, 1)
    queue.now_ms += 1
    queue.receive()
    _settle(queue)
    for session in set(sessions):
        assert queue.view.first_before(queue.asking(session), ANY) is not None
