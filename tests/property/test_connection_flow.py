"""Whatever a socket takes and whenever: a receiver with a message, credit and window is never forgotten.

Rule: while a message is ready, a link has credit and its session has a window, either something is on its way (bytes that
wait for a commit) or the transport has promised to call ``resume_writing``.
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from pairbus.server.config.certificates import ensure_certificates
from pairbus.server.layers.tls import server_context
from pairbus.server.sockets.connection import WRITE_BYTES_HIGH
from tests.property.socket_model import Layer, PlainLayer, SocketModel, TlsLayer, WebSocketLayer

MESSAGE_BYTES_MAX = 200_000
UNWRITTEN_BYTES_MAX = WRITE_BYTES_HIGH + 2 * (1_048_576 + 2 * MESSAGE_BYTES_MAX)
"""The transport's limit, one batch that was written above it, and one that was delivered before that was known."""
EVERYTHING = 1 << 40

SIZES = (0, 100, 2_000, 30_000, 65_537, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX)
ROOMS = (0, 1, 65_535, 65_536, 65_537, 131_072, 262_144, 262_145)
CREDITS = (0, 1, 2, 10, 100, 1_000)
WINDOWS = (0, 1, 2, 3, 7, 2_048, 65_536, 0xFFFF_FFFF)
FRAMES = (512, 65_536, 1 << 20)
SEEDS = 60

Step = tuple[str, int, int]
STOPS_BETWEEN_THE_LIMITS: list[Step] = [
    ("put", 12, MESSAGE_BYTES_MAX),
    ("take", 1_100_000, 0),
    ("grant", 100, 65_536),
]
"""More than the upper limit is delivered at once, and the socket takes all but an amount between the two limits."""


@cache
def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    with TemporaryDirectory() as directory:
        files = ensure_certificates(Path(directory), ["localhost"], datetime.now(UTC))
        assert files.ca_file is not None
        return (
            server_context(files.certificate_file, files.key_file),
            ssl.create_default_context(cafile=files.ca_file),
        )


def _model(
    kind: str, *, forgetful: bool = False, max_frame_size: int = 1 << 20, receivers: int = 1
) -> SocketModel:
    layer: Layer
    context = None
    if kind == "tls":
        context, client = _contexts()
        layer = TlsLayer(client)
    else:
        layer = WebSocketLayer() if kind == "ws" else PlainLayer()
    return SocketModel(
        layer,
        server_context=context,
        calls_back_for_lists=not forgetful,
        max_frame_size=max_frame_size,
        receivers=receivers,
    )


def _do(model: SocketModel, step: Step) -> None:
    name, amount, detail = step
    if name == "put":
        for _ in range(amount):
            model.put(detail)
    elif name == "take":
        model.transport.take(amount)
    elif name == "grant":
        place = (amount + detail) % len(model.receivers)
        model.grant(place, amount, detail)
    elif name == "window":
        model.open_window(amount % len(model.receivers), detail)
    elif name == "hold":
        model.holds_commits = bool(amount)
    else:
        model.driver.finish()


def _steps(chance: Random) -> list[Step]:
    """A story: messages wait, a receiver comes with more credit than its socket takes at once, then anything happens."""
    room = chance.randrange(2_000_000)
    steps: list[Step] = [
        ("put", chance.randrange(1, 20), chance.choice(SIZES)),
        ("take", room, 0),
        ("grant", 100, 65_536),
    ]
    for _ in range(chance.randrange(15)):
        name = chance.choice(("put", "take", "take", "grant", "grant", "window", "hold", "finish"))
        if name == "put":
            steps.append((name, chance.randrange(1, 12), chance.choice(SIZES)))
        elif name == "take":
            room = chance.choice((chance.choice(ROOMS), chance.randrange(1_500_000)))
            steps.append((name, room, 0))
        elif name == "grant":
            steps.append((name, chance.choice(CREDITS), chance.choice(WINDOWS)))
        elif name == "window":
            steps.append((name, chance.randrange(12), chance.choice(WINDOWS)))
        else:
            steps.append((name, chance.randrange(2), 0))
    return steps


def _play(model: SocketModel, steps: list[Step]) -> None:
    for step in steps:
        _do(model, step)
        model.settle()
        assert model.stalled() == [], step
        assert model.transport.get_write_buffer_size() <= UNWRITTEN_BYTES_MAX, step
    # The peer takes all there is: everything must come, each message once.
    model.holds_commits = False
    model.transport.take(EVERYTHING)
    model.settle()
    for place in range(len(model.receivers)):
        model.grant(place, 1_000_000, 65_536)
    model.settle()
    assert sorted(model.received()) == list(range(1, model.sent + 1))


@pytest.mark.promise("B63")
def test_a_receiver_with_credit_is_never_forgotten() -> None:
    async def play() -> None:
        for seed in range(SEEDS):
            chance = Random(seed)
            steps = _steps(chance)
            forgetful, frame, receivers = (
                chance.random() < 0.2,
                chance.choice(FRAMES),
                chance.choice((1, 2, 3, 12)),
            )
            try:
                _play(_model("amqp", forgetful=forgetful, max_frame_size=frame, receivers=receivers), steps)
            except AssertionError as error:
                error.add_note(f"seed {seed}, frames of {frame} bytes, {receivers} receivers: {steps}")
                raise

    asyncio.run(play())


@pytest.mark.promise("B63")
@pytest.mark.parametrize("kind", ["amqp", "ws", "tls"])
def test_deliveries_resume_between_the_limits_of_the_write_buffer(kind: str) -> None:
    async def play() -> None:
        _play(_model(kind), STOPS_BETWEEN_THE_LIMITS)
        for seed in range(SEEDS, SEEDS + 10):
            _play(_model(kind), _steps(Random(seed)))

    asyncio.run(play())


@pytest.mark.promise("B62")
def test_a_transport_that_does_not_call_back_for_lists_is_asked_to() -> None:
    async def play() -> None:
        model = _model("amqp", forgetful=True)
        _play(model, [("put", 12, MESSAGE_BYTES_MAX), ("grant", 100, 65_536)])

    asyncio.run(play())
