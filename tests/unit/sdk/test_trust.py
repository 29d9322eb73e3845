"""Authorities of one's own, and the port that a connection string names."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import certifi
import pytest

from pairbus.errors import UsageError
from pairbus.sdk.trust import bundle_of, reaching, read_authorities, trusting
from pairbus.server.config.certificates import ensure_certificates

KEY = "SharedAccessKeyName=n;SharedAccessKey=a2V5"


@pytest.fixture
def authority(tmp_path: Path) -> str:
    files = ensure_certificates(tmp_path, ["localhost"], datetime(2026, 1, 1, tzinfo=UTC))
    assert files.ca_file is not None
    return files.ca_file


def test_without_authorities_everything_is_as_usual() -> None:
    assert read_authorities([]) == ""
    assert trusting("") is None
    with bundle_of("") as file:
        assert file is None


def test_an_authority_is_trusted_besides_the_public_ones(authority: str) -> None:
    context = trusting(read_authorities([authority]))

    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    public = ssl.create_default_context(cafile=certifi.where())
    assert len(context.get_ca_certs()) == len(public.get_ca_certs()) + 1


def test_a_bundle_holds_the_same_and_is_gone_afterwards(authority: str) -> None:
    with bundle_of(read_authorities([authority])) as file:
        assert file is not None
        context = ssl.create_default_context(cafile=file)
        assert Path(authority).read_text() in Path(file).read_text()
    assert len(context.get_ca_certs()) > 1
    assert not Path(file).exists()


@pytest.mark.parametrize("content", ["", "root:x:0:0", "-----BEGIN CERTIFICATE-----\nAAAA\n", "é"])
def test_a_file_without_a_certificate_is_refused_by_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "wrong.pem"
    file.write_text(content, encoding="latin-1")

    with pytest.raises(UsageError, match=r"wrong\.pem cannot be used: no certificate in it"):
        read_authorities([str(file)])


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.pem cannot be used: No such file"):
        read_authorities([str(tmp_path / "gone.pem")])


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("sb://broker.example:7000/", "sb://broker.example:7000"),
        ("sb://broker.example/", None),
        ("sb://broker.example:5671/", None),
        ("sb://contoso.servicebus.windows.net", None),
    ],
)
def test_a_port_of_its_own_is_told_to_the_client(endpoint: str, address: str | None) -> None:
    assert reaching(f"Endpoint={endpoint};{KEY}").get("custom_endpoint_address") == address


def test_a_namespace_without_tls_needs_no_word() -> None:
    assert reaching(f"Endpoint=sb://127.0.0.1:7000/;{KEY};UseDevelopmentEmulator=true") == {}
