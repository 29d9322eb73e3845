"""Hostile bytes for every parser that reads what strangers send.

Each target takes bytes and must return or raise one of its own refusals; anything else, and anything slow, is a finding.
Inputs are well-formed samples, bent: bits flipped, pieces cut, doubled, swapped, lengths made huge. A finding is written
to build/fuzz with the command that repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.amqp import decode, encode
from pairbus.amqp.message.scan import scan, split_batch
from pairbus.amqp.transport import performatives
from pairbus.amqp.types import Symbol
from pairbus.engine.rules.sql.action import compile_action
from pairbus.engine.rules.sql.filter import compile_filter
from pairbus.errors import ProtocolError, Refusal, UsageError
from pairbus.gateway.atom import read as atom_read
from pairbus.model.entity import QUEUE
from pairbus.server.config import located_json
from pairbus.testing import Queue
from tools.fuzz_broker import FuzzedBroker

OUTPUT: Final = Path(__file__).resolve().parent.parent / "build" / "fuzz"
INPUT_SECONDS_MAX: Final = 1.0
"""No input of a few kilobytes may take longer; a parser that does can be used to stall the broker."""
BENDS_MAX: Final = 6
_BOLD_BYTES: Final = (
    0x00,
    0x40,
    0x45,
    0x53,
    0x70,
    0x7F,
    0x80,
    0xA0,
    0xB0,
    0xC0,
    0xC1,
    0xD0,
    0xD1,
    0xE0,
    0xF0,
    0xFF,
)


@dataclass(frozen=True)
class Target:
    """One parser, well-formed samples of what it reads, and the errors it may answer with."""

    name: str
    run: Callable[[bytes], object]
    samples: list[bytes]
    refusals: tuple[type[Exception], ...]


def text(function: Callable[[str], object]) -> Callable[[bytes], object]:
    """A target that reads text."""
    return lambda data: function(data.decode("utf-8", "replace"))


def value_samples() -> list[bytes]:
    """AMQP values of many shapes."""
    nested: object = [1, "two", b"three", {Symbol("four"): [5.0, None, True]}]
    values: list[object] = [nested, {"k": nested}, "x" * 300, list(range(300)), Symbol("amqp:x"), -(2**40)]
    return [encode.encode_value(value) for value in values]


def performative_samples() -> list[bytes]:
    """A body as the official clients send it, and values behind a descriptor."""
    plain = [performatives.Close(None).encode(), performatives.End(None).encode()]
    return plain + [
        b"\x00\x53" + bytes([code]) + value for code in range(0x10, 0x19) for value in value_samples()
    ]


def message_samples() -> list[bytes]:
    """Messages with every section, and a batch of them."""
    described = {
        0x70: [True, 4, 1000],
        0x71: {"x-opt-via": "q"},
        0x72: {"x-opt-partition-key": "p"},
        0x74: {"a": 1},
    }
    head = b"".join(
        b"\x00\x53" + bytes([code]) + encode.encode_value(value) for code, value in described.items()
    )
    properties = b"\x00\x53\x73" + encode.encode_value(["id", b"user", "to", "subject"])
    message = head + properties + b"\x00\x53\x75" + encode.encode_value(b"body")
    return [message, b"".join(b"\x00\x53\x75" + encode.encode_value(message) for _ in range(3))]


def targets() -> list[Target]:
    """Every parser of foreign bytes."""
    broker = FuzzedBroker()
    wire = (ProtocolError,)
    said_no = (Refusal,)
    queue = Queue("q", requires_session=True, lock_duration="PT5S", user_metadata="m").entry()
    filters = [b"sys.Label LIKE 'a%' AND (x >= 3.5 OR NOT EXISTS(y)) AND z IN ('a', 'b')", b"1=1"]
    actions = [b"SET a = 'b' + c; SET sys.Label = 'x'; REMOVE d"]
    config = b'{"UserConfig":{"Namespaces":[{"Name":"n","Queues":[{"Name":"q","Properties":{"MaxDeliveryCount":3}}]}]}}'
    return [
        Target("value", decode.decode_value, value_samples(), wire),
        Target("skip", lambda data: decode.skip_value(data, 0, len(data)), value_samples(), wire),
        Target(
            "performative",
            lambda d: performatives.decode_performative(d, 0, len(d)),
            performative_samples(),
            wire,
        ),
        Target("message", lambda data: scan(data, True), message_samples(), wire),
        Target("batch", split_batch, message_samples(), wire),
        Target("sql-filter", text(compile_filter), filters, said_no),
        Target("sql-action", text(compile_action), actions, said_no),
        Target(
            "atom",
            lambda d: atom_read.read_settings(QUEUE, atom_read.read_description(d), None, "2021-05", 0),
            [queue],
            said_no,
        ),
        Target("broker", broker.run, [broker.sample], ()),
        Target("config", text(located_json.parse), [config], (UsageError,)),
    ]


def bent(sample: bytes, rng: random.Random) -> bytes:
    """The sample with a few things wrong."""
    data = bytearray(sample)
    for _ in range(rng.randint(1, BENDS_MAX)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice(_BOLD_BYTES)
        elif kind == 2:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 3:
            data[at:at] = rng.choice((b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", rng.randbytes(4)))
        elif kind == 4:
            data[at:at] = data[rng.randrange(len(data) + 1) :][:64] * rng.randint(1, 20)
        else:
            del data[at:]
    return bytes(data)


def finding(target: Target, data: bytes) -> str | None:
    """What is wrong with how the target took this input; None when all is well."""
    started_at = time.process_time()
    try:
        target.run(data)
    except target.refusals:
        pass
    except Exception:
        return traceback.format_exc()
    took = time.process_time() - started_at
    return f"took {took:.1f} s for {len(data)} bytes" if took > INPUT_SECONDS_MAX else None


def keep(target: Target, data: bytes, problem: str) -> None:
    """Write the input down and say how to repeat it."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / f"{target.name}-{random.Random(data).getrandbits(32):08x}"
    path.write_bytes(data)
    print(
        f"FOUND in {target.name}: {problem}\n  repeat with: python -m tools.fuzz --target {target.name} --input {path}"
    )


def campaign(target: Target, seconds: float, rng: random.Random) -> bool:
    """Bend samples for so long; True when nothing was found."""
    give_up_at = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < give_up_at:
        data = bent(rng.choice(target.samples), rng)
        tried += 1
        problem = finding(target, data)
        if problem:
            keep(target, data, problem)
            return False
    print(f"{target.name:14} {tried:9,} inputs, nothing found")
    return True


def main() -> int:
    """Run all targets, each for its share of the time; 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run")
    parser.add_argument("--target", help="this one only")
    parser.add_argument("--input", type=Path, help="one input, from a file")
    options = parser.parse_args()
    chosen = [target for target in targets() if options.target in (None, target.name)]
    if not chosen:
        parser.error(
            f"no target is named {options.target!r}; there are {', '.join(t.name for t in targets())}"
        )
    if options.input:
        problems = [finding(target, options.input.read_bytes()) for target in chosen]
        print("\n".join(problem or "taken well" for problem in problems))
        return 1 if any(problems) else 0
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    print(f"seed {seed}")
    found = [not campaign(target, options.seconds / len(chosen), random.Random(seed)) for target in chosen]
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
