from __future__ import annotations

import errno
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pairbus.errors import UsageError
from pairbus.server.config.certificates import CertificateFiles, ensure_certificates
from pairbus.server.layers.tls import TlsLayer, server_context
from pairbus.server.main import _explain

NOW = datetime.now(tz=UTC)


def shake(files: CertificateFiles, host: str) -> None:
    """A whole handshake of the real ssl module with our layer; raises when the client does not trust us."""
    server = TlsLayer(server_context(files.certificate_file, files.key_file))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=files.ca_file)
    client = context.wrap_bio(incoming, outgoing, server_hostname=host)
    for _ in range(10):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            server.receive(outgoing.read())
            incoming.write(server.take_output())
            continue
        server.receive(outgoing.read())
        assert server.is_established
        return
    raise AssertionError("the handshake did not end")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "broker.example.com", "10.1.2.3"])
def test_certificates_are_trusted_under_every_name(tmp_path: Path, host: str) -> None:
    files = ensure_certificates(tmp_path / "tls", ["broker.example.com", "10.1.2.3"], NOW)

    shake(files, host)


def test_another_name_is_not_trusted(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path / "tls", [], NOW)

    with pytest.raises(ssl.SSLCertVerificationError):
        shake(files, "evil.example.com")


@pytest.mark.promise("M7")
def test_all_files_are_the_owners_alone(tmp_path: Path) -> None:
    ensure_certificates(tmp_path / "tls", [], NOW)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert modes == {"ca.pem": 0o600, "ca.key": 0o600, "server.pem": 0o600, "server.key": 0o600}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["a.example"], NOW)
    before = contents(tmp_path)

    ensure_certificates(tmp_path, ["a.example"], NOW + timedelta(days=300))

    assert contents(tmp_path) == before


@pytest.mark.parametrize(("days", "names"), [(368, ["a.example"]), (0, ["b.example"])])
def test_the_server_certificate_is_renewed_in_time_or_for_new_names_under_the_same_authority(
    tmp_path: Path, days: int, names: list[str]
) -> None:
    ensure_certificates(tmp_path, ["a.example"], NOW)
    before = contents(tmp_path)

    files = ensure_certificates(tmp_path, names, NOW + timedelta(days=days))

    after = contents(tmp_path)
    assert after["ca.pem"] == before["ca.pem"]
    assert after["server.pem"] != before["server.pem"]
    if not days:
        shake(files, names[0])


def test_an_authority_that_ends_is_replaced_with_everything_under_it(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, [], NOW - timedelta(days=3640))
    before = contents(tmp_path)

    files = ensure_certificates(tmp_path, [], NOW)

    assert contents(tmp_path)["ca.pem"] != before["ca.pem"]
    shake(files, "localhost")


def test_a_key_of_another_certificate_is_noticed_and_the_pair_is_made_again(tmp_path: Path) -> None:
    ensure_certificates(tmp_path / "a", [], NOW)
    ensure_certificates(tmp_path / "b", [], NOW)
    (tmp_path / "a" / "server.key").write_bytes((tmp_path / "b" / "server.key").read_bytes())

    shake(ensure_certificates(tmp_path / "a", [], NOW), "localhost")


def test_unreadable_files_are_an_error_with_the_way_out(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, [], NOW)
    (tmp_path / "ca.pem").write_text("garbage")

    with pytest.raises(UsageError, match="remove both"):
        ensure_certificates(tmp_path, [], NOW)


@pytest.mark.parametrize("missing", ["ca.pem", "ca.key"])
def test_half_an_authority_that_is_in_use_is_not_replaced(tmp_path: Path, missing: str) -> None:
    ensure_certificates(tmp_path, [], NOW)
    (tmp_path / missing).unlink()
    before = contents(tmp_path)

    with pytest.raises(UsageError, match=f"{missing} is missing.*Restore {missing} from a copy"):
        ensure_certificates(tmp_path, [], NOW)

    assert contents(tmp_path) == before


def test_a_first_start_that_was_killed_between_the_files_goes_on(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, [], NOW)
    for name in ("ca.pem", "server.pem", "server.key"):
        (tmp_path / name).unlink()

    shake(ensure_certificates(tmp_path, [], NOW), "localhost")


def test_a_lost_authority_is_made_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_certificates(tmp_path, [], NOW)
    assert not caplog.records
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).unlink()

    shake(ensure_certificates(tmp_path, [], NOW), "localhost")

    (record,) = caplog.records
    assert "clients that trust the one before must trust this one" in record.getMessage()


def test_a_shortage_of_descriptors_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_certificates(tmp_path, [], NOW)

    def no_descriptor(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Path, "read_bytes", no_descriptor)
    with pytest.raises(OSError, match="Too many open files") as caught:
        ensure_certificates(tmp_path, [], NOW)

    assert "ulimit -n" in _explain(caught.value)
    assert "remove" not in _explain(caught.value)


def test_a_file_that_may_not_be_read_is_not_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_certificates(tmp_path, [], NOW)

    def forbidden(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(UsageError, match="ca.pem cannot be read: Permission denied; make it readable"):
        ensure_certificates(tmp_path, [], NOW)


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tls-name"):
        ensure_certificates(tmp_path, ["bücher.example"], NOW)


def test_the_paths_are_absolute_for_a_directory_given_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = ensure_certificates(Path("data/tls"), [], NOW)

    assert files.ca_file == str(tmp_path / "data" / "tls" / "ca.pem")
    assert Path(files.certificate_file).is_absolute()
    assert Path(files.key_file).is_absolute()
