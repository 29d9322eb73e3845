"""The answer to an attach states what is in place (AMQP 1.0, 3.5.3); what is not offered is refused by name."""

from __future__ import annotations

import pytest

from pairbus.amqp.encode import encode_value
from pairbus.amqp.transport.performatives import Source
from pairbus.amqp.types import Described, Int, Long, Symbol, ULong
from pairbus.model.entity import Settings
from tests.simulation.wire import ClientReceiver
from tests.unit.gateway.wire_bench import Peer, WireBench, message, with_messages

SELECTOR = "apache.org:selector-filter:string"
SESSION = "com.microsoft:session-filter"
SESSION_CODE = 0x0000_0137_0000_000C


def refusal(receiver: ClientReceiver) -> tuple[str, str]:
    """Condition and text of a refused attach; a refusal has no source."""
    assert receiver.answer is not None
    assert receiver.answer.source is None
    assert receiver.error is not None
    return receiver.error.condition, receiver.error.description


def source_of(receiver: ClientReceiver) -> Source:
    assert receiver.answer is not None
    assert receiver.answer.source is not None
    return receiver.answer.source


# ---- browsing ----


@pytest.mark.parametrize("receive_and_delete", [False, True])
def test_a_queue_browser_is_refused_and_takes_nothing(receive_and_delete: bool) -> None:
    bench, peer = with_messages(3)

    browser = peer.session.receiver(
        "q", credit=10, distribution_mode="copy", receive_and_delete=receive_and_delete
    )
    bench.settle()

    condition, text = refusal(browser)
    assert condition == "amqp:not-implemented"
    assert "'copy'" in text
    assert "com.microsoft:peek-message" in text
    assert "'q/$management'" in text
    assert browser.deliveries == []
    peeked = peer.answer("q", "peek-message", {"from-sequence-number": Long(0), "message-count": Int(10)})[
        "messages"
    ]
    assert isinstance(peeked, list)
    assert len(peeked) == 3


def test_an_unknown_distribution_mode_is_refused() -> None:
    bench, peer = with_messages(0)

    receiver = peer.session.receiver("q", distribution_mode="share")
    bench.settle()

    assert refusal(receiver)[0] == "amqp:not-implemented"


@pytest.mark.parametrize("mode", ["", "move"])
def test_a_receiver_that_moves_is_answered_with_its_mode(mode: str) -> None:
    bench, peer = with_messages(1)

    receiver = peer.session.receiver("q", credit=1, distribution_mode=mode)
    bench.settle()

    assert source_of(receiver).distribution_mode == mode
    assert len(receiver.deliveries) == 1


# ---- filters ----


def test_a_filter_that_is_not_applied_is_not_in_the_answer() -> None:
    bench, peer = with_messages(0)
    selector = Described(Symbol(SELECTOR), "colour = 'green'")

    receiver = peer.session.receiver("q", filter={SELECTOR: selector})
    bench.settle()

    assert receiver.is_attached
    assert source_of(receiver).filter is None


def test_of_several_filters_the_session_filter_alone_is_in_the_answer() -> None:
    bench, peer = with_messages(1, Settings(requires_session=True))
    selector = Described(Symbol(SELECTOR), "colour = 'green'")

    receiver = peer.session.receiver("q", filter={SELECTOR: selector, SESSION: "s"})
    bench.settle()

    assert receiver.is_attached
    assert source_of(receiver).filter == {SESSION: "s"}


def bytes_to(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """What the peer receives from now on, as bytes: decoded, a ulong is not told from a long."""
    seen = bytearray()
    receive = peer.client.receive

    def note(data: bytes) -> None:
        seen.extend(data)
        receive(data)

    monkeypatch.setattr(peer.client, "receive", note)
    return seen


@pytest.mark.promise("B51")
@pytest.mark.parametrize("wanted", ["s", None], ids=["by its id", "next available"])
@pytest.mark.parametrize(
    "descriptor", [None, Symbol(SESSION), ULong(SESSION_CODE)], ids=["plain", "symbol", "ulong"]
)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_a_session_filter_is_answered_in_the_form_it_was_asked_in(
    descriptor: Symbol | ULong | None, wanted: str | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, peer = with_messages(0 if waits else 1, Settings(requires_session=True))
    seen = bytes_to(peer, monkeypatch)

    def form(session_id: str | None) -> object:
        return session_id if descriptor is None else Described(descriptor, session_id)

    receiver = peer.session.receiver("q", filter={Symbol(SESSION): form(wanted)}, credit=1)
    bench.settle()
    if waits:
        assert (receiver.answer is None) == (wanted is None)
        peer.session.sender("q").send(message("late", group_id="s"))
        bench.settle()

    assert encode_value({Symbol(SESSION): form("s")}) in seen
    assert len(receiver.deliveries) == 1


@pytest.mark.parametrize("descriptor", [Long(-1), [], "text"])
def test_a_session_filter_with_a_strange_descriptor_is_answered_too(descriptor: object) -> None:
    bench, peer = with_messages(1, Settings(requires_session=True))

    receiver = peer.session.receiver("q", filter={Symbol(SESSION): Described(descriptor, "s")}, credit=1)
    bench.settle()

    assert len(receiver.deliveries) == 1


# ---- dynamic nodes ----


def test_a_dynamic_source_is_refused_by_name() -> None:
    bench, peer = with_messages(0)

    receiver = peer.session.receiver(None, dynamic=True)
    bench.settle()

    condition, text = refusal(receiver)
    assert condition == "amqp:not-implemented"
    assert "dynamic" in text


def test_a_dynamic_target_is_refused_by_name() -> None:
    bench, peer = with_messages(0)

    sender = peer.session.sender(None, dynamic=True)
    bench.settle()

    assert sender.error is not None
    assert sender.error.condition == "amqp:not-implemented"
    assert "dynamic" in sender.error.description


@pytest.mark.promise("M6")
def test_a_stranger_learns_nothing_from_a_dynamic_node(bench: WireBench) -> None:
    peer = bench.peer(user=None)

    receiver = peer.session.receiver(None, dynamic=True)
    bench.settle()

    assert refusal(receiver)[0] == "amqp:unauthorized-access"


# ---- order of frames, and tags ----


def test_a_request_is_settled_before_its_answer_comes() -> None:
    """The raw client refuses anything else, so every test with a node holds this."""
    _, peer = with_messages(1)

    found = peer.ask("q", "peek-message", {"from-sequence-number": Long(1), "message-count": Int(1)})

    assert found is not None
    assert found.application_properties["statusCode"] == 200


def test_what_is_deleted_as_it_is_received_has_an_empty_tag() -> None:
    bench, peer = with_messages(2)

    receiver = peer.session.receiver("q", credit=2, receive_and_delete=True)
    bench.settle()

    assert [(delivery.tag, delivery.settled) for delivery in receiver.deliveries] == [(b"", True)] * 2


def test_a_large_message_that_is_deleted_as_it_is_received_has_an_empty_tag_in_its_first_frame() -> None:
    bench = WireBench()
    bench.queue("q")
    peer = bench.peer(max_frame_size=4096)
    sender = peer.session.sender("q")
    bench.settle()
    sender.send(message("x" * 20_000))
    bench.settle()

    receiver = peer.session.receiver("q", credit=1, receive_and_delete=True)
    bench.settle()

    (delivery,) = receiver.deliveries
    assert delivery.tag == b""
    assert delivery.message.body == "x" * 20_000
