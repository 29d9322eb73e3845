"""`python -m bench.cycle`: what one message costs inside the broker, without sockets, event loop and disk.

A client's bytes go through the gateway, the engine and the log on disk, whose syncs are left out; the deliveries are settled
again. So the figure is the work of the code alone. It is the least of many short bursts, which another busy process hardly
disturbs: use it to compare two states of the code, and `bench.broker` to compare brokers.
"""

from __future__ import annotations

import argparse
import gc
import struct
import tempfile
import time
from pathlib import Path
from typing import Final

from bench import ours
from pairbus.amqp.transport.framing import AMQP_HEADER, SASL_HEADER, amqp_frame, sasl_frame
from pairbus.amqp.transport.performatives import Attach, Begin, Flow, Open, Source, Target
from pairbus.amqp.transport.sasl import SaslInit
from pairbus.gateway.broker import Broker
from pairbus.model.access import RIGHTS, AccessRule
from pairbus.model.entity import QUEUE, Settings
from pairbus.storage.files import RealFileSystem
from pairbus.storage.log.store import LogStore

NOW: Final = 1_700_000_000_000
BODY: Final = b"x" * 1024
CREDIT: Final = 5_000
WINDOW: Final = 2_147_483_647
DELIVERY_ID: Final = 20
"""Where the delivery id stands in a transfer frame."""
BURSTS: Final = 60


class UnsyncedFiles(RealFileSystem):
    """The real files, but for the syncs."""

    def sync(self, handle: int) -> None:
        """Take no time."""

    def sync_directory(self) -> None:
        """Take no time."""


def transfer(body: bytes) -> bytes:
    """A frame with one durable message, as the load generator writes it."""
    performative = (
        b"\x00\x53\x14\xc0\x17\x05\x70"
        + bytes(4)
        + b"\x70"
        + bytes(4)
        + b"\xa0\x04"
        + bytes(4)
        + b"\x70"
        + bytes(4)
        + b"\x42"
    )
    message = b"\x00\x53\x70\xc0\x02\x01\x41"
    message += b"\x00\x53\x73\xc0\x23\x01\xa1\x20" + b"0" * 32
    message += b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body
    return amqp_frame(0, performative + message)


def accepted(first: int, last: int) -> bytes:
    """A receiver's frame that completes a range of deliveries and waits for the answer."""
    return amqp_frame(
        0,
        b"\x00\x53\x15\xc0\x11\x05\x41"
        + struct.pack(">BIBI", 0x70, first, 0x70, last)
        + b"\x42\x00\x53\x24\x45",
    )


class Cycle:
    """A broker with one queue, a sender and a receiver."""

    def __init__(self, directory: str) -> None:
        self.store = LogStore.open(
            directory, namespace="cycle", file_system=UnsyncedFiles(Path(directory)), is_background=False
        )
        self.broker = Broker("cycle", self.store, bytes(range(32)))
        for record in self.store.replay():
            self.broker.namespace.fold(record)
        self.broker.namespace.replayed()
        self.store.live(self.broker.namespace.live_messages())
        self.broker.serve(None)
        rule = AccessRule(name="root", rights=RIGHTS, primary_key="key", secondary_key="key2")
        self.broker.namespace.set_access_rules((rule,), NOW)
        self.broker.namespace.create(QUEUE, "q", Settings(), NOW)
        self.gateway = self.broker.connect("127.0.0.1:1", secure=True, loopback=True, now=NOW)
        self.sent = 0
        self.settled = 0
        self.frame = transfer(BODY)
        self.say(SASL_HEADER + sasl_frame(SaslInit("PLAIN", b"\0root\0key").encode()) + AMQP_HEADER)
        self.say(amqp_frame(0, Open("cycle").encode()) + amqp_frame(0, Begin(0, WINDOW, WINDOW).encode()))
        sender = Attach("s", 0, False, source=Source("c"), target=Target("q"), initial_delivery_count=0)
        receiver = Attach("r", 1, True, source=Source("q"), target=Target("c"))
        self.say(amqp_frame(0, sender.encode()) + amqp_frame(0, receiver.encode()))
        self.flow()

    def say(self, data: bytes) -> int:
        """One turn: input, deliveries, commit, output. How many bytes came back."""
        self.gateway.receive(data, NOW)
        self.broker.pump(NOW)
        size = 0
        for gateway in self.broker.take_dirty():
            size += sum(map(len, gateway.take_output()))
        batch = self.store.seal()
        if batch is not None:
            self.store.commit(batch)
        return size

    def flow(self) -> None:
        frame = Flow(self.settled + 1, WINDOW, 0, WINDOW, 1, self.settled, CREDIT)
        self.say(amqp_frame(0, frame.encode()))

    def burst(self, window: int) -> bytes:
        """The frames of a window of messages."""
        frames = []
        for number in range(self.sent, self.sent + window):
            frame = bytearray(self.frame)
            frame[DELIVERY_ID : DELIVERY_ID + 4] = struct.pack(">I", number)
            frames.append(bytes(frame))
        self.sent += window
        return b"".join(frames)

    def run(self, window: int, windows: int) -> float:
        """Processor microseconds a message, sent, delivered and completed."""
        inputs = [self.burst(window) for _ in range(windows)]
        took = 0.0
        for data in inputs:
            started = time.thread_time()
            back = self.say(data)
            first, self.settled = self.settled, self.settled + window
            self.say(accepted(first, self.settled - 1))
            took += time.thread_time() - started
            assert back > window * len(BODY), "every message was delivered"
            self.flow()
        return took * 1e6 / (window * windows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cycle", description=__doc__)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--bursts", type=int, default=BURSTS)
    parser.add_argument("--directory", default="/dev/shm", help="where the log lies meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        cycle = Cycle(directory)
        gc.collect()
        gc.freeze()
        windows = max(1, 1000 // options.window)
        took = sorted(cycle.run(options.window, windows) for _ in range(options.bursts))
    form = "compiled" if ours.form() == ours.COMPILED else "not compiled"
    middle = took[len(took) // 2]
    print(
        f"{form}, window {options.window}: {took[0]:.2f} us of processor time a message at best, {middle:.2f} in the middle"
    )


if __name__ == "__main__":
    main()
