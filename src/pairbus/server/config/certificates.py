"""The broker's own certificate authority and server certificate, made on first start and renewed in time.

Files lie in ``DATA/tls`` with mode 0600: ``ca.pem``, ``ca.key``, ``server.pem``, ``server.key``. Clients trust ``ca.pem``.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pairbus.errors import UsageError
from pairbus.server.files import write_whole

logger = logging.getLogger(__name__)

CA_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=397)
"""What clients accept at most of a server certificate."""
RENEW_BEFORE: Final = timedelta(days=30)
BACKDATE: Final = timedelta(hours=1)
"""Certificates begin a little in the past, for clients whose clock is behind."""
COMMON_NAME_MAX: Final = 64
HOME_NAMES: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Where the certificate, its key and the authority to trust are."""

    certificate_file: str
    key_file: str
    ca_file: str | None
    """None: the certificate was given from outside, and so is its authority."""


def ensure_certificates(directory: Path, names: Sequence[str], now: datetime) -> CertificateFiles:
    """Make or renew what is missing, too old or for other names. Repeating it changes nothing.

    The paths it gives are absolute: other processes read them from the ready file, each in a directory of its own.
    Raises UsageError when files are there that cannot be read, or half an authority that is in use; OSError when the process has no file
    descriptor left.
    """
    directory = directory.absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca_path, ca_key_path = directory / "ca.pem", directory / "ca.key"
    path, key_path = directory / "server.pem", directory / "server.key"
    is_in_use = path.exists()
    if is_in_use:
        _refuse_half_an_authority(ca_path, ca_key_path)
    ca = _load(ca_path, ca_key_path)
    if ca is None or _ends_soon(ca[0], now):
        if is_in_use:
            _warn_of_new_authority(ca_path, "it is missing" if ca is None else "it ends soon")
        ca = _make_ca(now)
        write_whole(ca_key_path, _key_pem(ca[1]))
        write_whole(ca_path, _pem(ca[0]))
    server = _load(path, key_path)
    wanted = list(dict.fromkeys((*HOME_NAMES, *names)))
    if server is None or not _is_fit(server[0], ca[0], wanted, now):
        certificate, key = _make_server(ca, wanted, now)
        write_whole(key_path, _key_pem(key))
        write_whole(path, _pem(certificate) + _pem(ca[0]))
    return CertificateFiles(certificate_file=str(path), key_file=str(key_path), ca_file=str(ca_path))


def _refuse_half_an_authority(ca_path: Path, ca_key_path: Path) -> None:
    """Refuse to replace an authority of which one file is missing: no client would trust the broker any more."""
    for missing, held in ((ca_path, ca_key_path), (ca_key_path, ca_path)):
        if held.exists() and not missing.exists():
            raise UsageError(
                f"{missing} is missing, and {held.name} beside it is in use: a new authority would not be trusted by any client. "
                f"Restore {missing.name} from a copy; or remove {held} as well, and have every client trust the new ca.pem"
            )


def _warn_of_new_authority(ca_path: Path, why: str) -> None:
    logger.warning(
        "a new certificate authority is made: clients that trust the one before must trust this one from now on",
        extra={"event": "tls.new_authority", "ca_file": str(ca_path), "reason": why},
    )


def _is_fit(certificate: x509.Certificate, ca: x509.Certificate, names: Sequence[str], now: datetime) -> bool:
    if _ends_soon(certificate, now):
        return False
    try:
        certificate.verify_directly_issued_by(ca)
        held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # noqa: BLE001 - whatever does not verify is replaced
        return False
    return all(_general_name(name) in held for name in names)


def _ends_soon(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_after_utc - now < RENEW_BEFORE


def _load(path: Path, key_path: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    if not path.exists() or not key_path.exists():
        return None
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # nothing is wrong with the file
        raise UsageError(
            f"{error.filename or path} cannot be read: {error.strerror}; make it readable for this user"
        ) from error
    except (ValueError, TypeError) as error:
        raise UsageError(_damaged(path, key_path)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        # Killed between the two files: the pair does not belong together and is made again.
        return None
    return certificate, key


def _damaged(path: Path, key_path: Path) -> str:
    what = f"{path} or {key_path.name} is damaged: it holds no certificate or key in PEM format; restore it from a copy"
    if path.name == "ca.pem":
        return f"{what}, or remove both: a new authority is made at the next start, which every client must trust"
    return f"{what}, or remove both: they are made again at the next start"


def _make_ca(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "PairBus local authority")])
    builder = _builder(name, name, key, now, now + CA_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _make_server(
    ca: tuple[x509.Certificate, ec.EllipticCurvePrivateKey], names: Sequence[str], now: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    ca_certificate, ca_key = ca
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[-1][:COMMON_NAME_MAX])])
    ends = min(now + SERVER_LIFE, ca_certificate.not_valid_after_utc)
    builder = _builder(subject, ca_certificate.subject, key, now, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    builder = builder.add_extension(alternatives, critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = builder.add_extension(authority, critical=False)
    return builder.sign(ca_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise UsageError(f"--tls-name {name!r} is neither a host name nor an address: {error}") from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
