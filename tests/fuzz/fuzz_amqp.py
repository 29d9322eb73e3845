"""Hostile bytes for the whole AMQP room: values, messages, batches and conversations (B59, B60).

Run it for as long as you like:

    python -m tests.fuzz.fuzz_amqp --seconds 60

With ``atheris`` installed libFuzzer guides it by coverage. Without, it guides itself: an input that reaches a line of
the room for the first time is kept and bent further. A finding is printed as hex and repeats with ``--repeat HEX``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pairbus.amqp
from pairbus.amqp.decode import decode_value, skip_value
from pairbus.amqp.message.delivery import DeliveryExtras, delivery_parts
from pairbus.amqp.message.scan import scan, split_batch
from pairbus.amqp.message.view import PropertiesView
from pairbus.amqp.message.whole import decode_message, encode_message
from pairbus.amqp.states import STATE_ACCEPTED, encode_modified, encode_transactional
from pairbus.amqp.transport.framing import AMQP_HEADER, SASL_HEADER, amqp_frame
from pairbus.amqp.transport.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
)
from pairbus.amqp.transport.sasl import SaslInit
from pairbus.amqp.types import Array, Described, Symbol, Timestamp, UInt, Uuid
from pairbus.errors import RemoteProtocolError
from tests.simulation.wire import encode_batch
from tests.unit.amqp.peers import Wire

ROOM: Final = str(Path(pairbus.amqp.__file__).parent)
INPUT_SECONDS_MAX: Final = 1.0
"""No input of some kilobytes may take more of the processor's time."""
CORPUS_MAX: Final = 2000
BENDS_MAX: Final = 5
BOLD: Final = b"\x00\x40\x41\x43\x45\x52\x53\x70\x7f\x80\xa0\xa1\xb0\xb1\xc0\xc1\xd0\xd1\xe0\xf0\xff"
LOGIN: Final = SASL_HEADER + SaslInit("ANONYMOUS", b"\x00rule", "host").frame() + AMQP_HEADER


def run(data: bytes) -> None:
    """Everything the room does with bytes of strangers. Raises only when the room is wrong."""
    _value(data)
    _message(data)
    _conversation(data)
    _conversation(LOGIN + _opening() + data)


def _value(data: bytes) -> None:
    try:
        _, end = decode_value(data)
    except RemoteProtocolError:
        return
    assert skip_value(data, 0, len(data)) == end


def _message(data: bytes) -> None:
    for read in (split_batch, decode_message):
        try:
            read(data)
        except RemoteProtocolError:
            pass
    try:
        blob = scan(data, want_message_id=True).blob
    except RemoteProtocolError:
        return
    extras = DeliveryExtras()
    extras.dead_letter_reason = "reason"
    extras.changed_properties = encode_message(body=None)[:0]
    delivery_parts(blob, 0, 1, 2, 3, bytes(16), extras=extras)
    view = PropertiesView(blob)
    view.system("MessageId")
    view.user("n")
    view.body_bytes()


def _conversation(data: bytes) -> None:
    wire = Wire()
    wire.raw(data)
    for link in list(wire.handler.links.values()):
        if link.can_send():
            link.send(bytes(16), [b"delivery"], False)
    wire.connection.take_output()
    wire.connection.tick(10**9)
    wire.connection.lost()
    assert wire.connection.is_closed
    assert wire.connection.link_count == 0, "links leaked"
    assert wire.connection.partial_size == 0, "bytes of unfinished deliveries leaked"


def _opening() -> bytes:
    sender, receiver = Attach("s", 0, False), Attach("r", 1, True)
    for frame in (sender, receiver):
        frame.source, frame.target = Source("q"), Target("q")
    flow = Flow()
    flow.next_incoming_id, flow.incoming_window = 1, 100
    flow.handle, flow.delivery_count, flow.link_credit = 1, 0, 10
    frames: list[Performative] = [Open("client"), Begin(0, 100, 100), sender, receiver, flow]
    return b"".join(amqp_frame(0, frame.encode()) for frame in frames)


def seeds() -> list[bytes]:
    """Sound inputs to start from."""
    transfer = Transfer(0)
    transfer.delivery_id, transfer.delivery_tag, transfer.message_format = 1, b"tag", 0
    transfer.state_bytes = encode_transactional(b"txn", None)
    partial = Transfer(0)
    partial.delivery_id, partial.delivery_tag, partial.more = 2, b"tag", True
    disposition = Disposition(True, 1, 5)
    disposition.state_bytes = encode_modified(True, False)
    accepted = Disposition(True, 1, 1)
    accepted.settled, accepted.state_bytes = True, STATE_ACCEPTED
    flow = Flow()
    flow.handle, flow.echo, flow.drain = 1, True, True
    message = encode_message(
        message_id=Uuid(bytes(16)),
        group_id="g",
        header=[True, None, UInt(7)],
        message_annotations={"x-opt-partition-key": "k", "x-opt-scheduled-enqueue-time": Timestamp(5)},
        delivery_annotations={"d": [1, {"k": None}]},
        application_properties={"a": 1, "b": "text", "c": Timestamp(1)},
        body=b"body",
        body_kind="data",
    )
    frames = [
        amqp_frame(0, transfer.encode() + message),
        amqp_frame(0, partial.encode() + message),
        amqp_frame(0, disposition.encode()),
        amqp_frame(0, accepted.encode()),
        amqp_frame(0, flow.encode()),
        amqp_frame(0, Detach(0, True, None).encode()),
        amqp_frame(0, End(None).encode()),
        amqp_frame(0, Close(None).encode()),
    ]
    value = encode_message(body=[Described(5, Array([Symbol("a"), Symbol("b")])), {"k": 1.5}, "x" * 300])
    return [message, encode_batch([message, message]), value, LOGIN + _opening(), b"".join(frames), *frames]


def bent(dice: random.Random, pool: list[bytes]) -> bytes:
    """One input of the pool, changed a little."""
    data = bytearray(dice.choice(pool))
    for _ in range(dice.randint(1, BENDS_MAX)):
        place = dice.randrange(len(data) + 1)
        way = dice.randrange(6)
        if way == 0 and data:
            data[place % len(data)] = dice.choice(BOLD)
        elif way == 1 and data:
            data[place % len(data)] ^= 1 << dice.randrange(8)
        elif way == 2:
            data[place:place] = bytes(dice.choice(BOLD) for _ in range(dice.randint(1, 4)))
        elif way == 3:
            del data[place : place + dice.randint(1, 8)]
        elif way == 4:
            other = dice.choice(pool)
            data[place:] = other[dice.randrange(len(other) + 1) :]
        else:
            data[place : place + 4] = dice.choice(
                (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x01\x00\x00")
            )
    return bytes(data[:20_000])


def explore(seed: int, rounds: int) -> int:
    """A short, repeatable run; returns the number of inputs tried."""
    dice = random.Random(seed)
    pool = seeds()
    for data in pool:
        run(data)
    for _ in range(rounds):
        run(bent(dice, pool))
    return rounds + len(pool)


class Coverage:
    """Which lines of the room have been reached so far."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self.is_new = False

    def run(self, data: bytes) -> bool:
        """Run one input; True when it reached something new."""
        self.is_new = False
        sys.settrace(self._call)
        try:
            run(data)
        finally:
            sys.settrace(None)
        return self.is_new

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(ROOM) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in self.lines:
            self.lines.add(place)
            self.is_new = True
        return self._line


def guided(seconds: float, seed: int) -> int:
    """Look until the time is up, keeping what reaches new lines. Returns how many inputs were tried."""
    dice = random.Random(seed)
    pool = seeds()
    coverage = Coverage()
    for data in pool:
        coverage.run(data)
    tried = 0
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        data = bent(dice, pool)
        started = time.process_time()
        try:
            if coverage.run(data) and len(pool) < CORPUS_MAX:
                pool.append(data)
        except BaseException:
            print(f"finding: --repeat {data.hex()}")
            raise
        if time.process_time() - started > INPUT_SECONDS_MAX:
            print(f"slow: --repeat {data.hex()}")
            raise SystemExit(1)
        tried += 1
    print(f"{tried} inputs, {len(pool)} kept, {len(coverage.lines)} lines reached, no finding (seed {seed})")
    return tried


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", help="run one input, given as hex")
    options = parser.parse_args()
    if options.repeat is not None:
        run(bytes.fromhex(options.repeat))
    elif importlib.util.find_spec("atheris") is not None:
        atheris = importlib.import_module("atheris")
        atheris.instrument_all()
        atheris.Setup([sys.argv[0], f"-max_total_time={int(options.seconds)}", f"-seed={options.seed}"], run)
        atheris.Fuzz()
    else:
        guided(options.seconds, options.seed)


if __name__ == "__main__":
    main()
