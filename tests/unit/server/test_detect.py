from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import UsageError
from pairbus.server.config.addresses import format_address, is_loopback, is_wildcard, parse_address
from pairbus.server.layers.detect import PREFIX_BYTES_MAX, WireProtocol, detect_protocol


@pytest.mark.parametrize(
    ("first", "tongue"),
    [
        (b"AMQP\x03\x01\x00\x00", WireProtocol.AMQP),
        (b"\x16\x03\x01\x02\x00", WireProtocol.TLS),
        (b"GET / HTTP/1.1\r\n", WireProtocol.HTTP),
        (b"DELETE /q HTTP/1.1\r\n", WireProtocol.HTTP),
        (b"GETX", WireProtocol.UNKNOWN),
        (b"\x16\x02", WireProtocol.UNKNOWN),
        (b"SSH-2.0-x", WireProtocol.UNKNOWN),
        (b"AMQX", WireProtocol.UNKNOWN),
    ],
)
def test_tongue_is_told_by_the_first_bytes(first: bytes, tongue: WireProtocol) -> None:
    assert detect_protocol(first) is tongue


def _drop_by_drop(data: bytes) -> WireProtocol | None:
    for end in range(1, len(data) + 1):
        if (tongue := detect_protocol(data[:end])) is not None:
            return tongue
    return None


@pytest.mark.promise("B59")
@given(
    st.one_of(
        st.binary(min_size=1), st.sampled_from([b"AMQP\x00", b"POST /", b"PO", b"\x16", b"\x16\x03", b"PUX"])
    )
)
def test_chunking_never_matters_and_few_bytes_decide(data: bytes) -> None:
    whole = detect_protocol(data)

    assert _drop_by_drop(data) is whole
    assert whole is not None or len(data) < PREFIX_BYTES_MAX


@pytest.mark.promise("M14")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"])
def test_loopback_peers_are_at_home(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.promise("M14")
@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "0.0.0.0",
        "::",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
        "128.0.0.1",
        "localhost",
        "",
        "127.0.0.1.evil",
    ],
)
def test_other_peers_are_not(host: str) -> None:
    assert not is_loopback(host)


def test_addresses_are_read_and_written_alike() -> None:
    for text in ("127.0.0.1:5672", "[::1]:0", "localhost:65535"):
        assert format_address(*parse_address(text, "--amqp")) == text
    assert is_wildcard("0.0.0.0")
    assert is_wildcard("::")


@pytest.mark.parametrize("text", ["localhost", "host:", "host:70000", "host:-1", "::1:5672", "host:٣"])
def test_bad_addresses_are_refused_with_the_option_that_gave_them(text: str) -> None:
    with pytest.raises(UsageError, match="--amqp"):
        parse_address(text, "--amqp")
