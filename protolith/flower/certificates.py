"""The deployment's own certificate authority, the server's certificate, and the sites' keys."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protolith.flower.plan import LOOPBACK, is_address

AUTHORITY_DAYS = 3650
SERVER_DAYS = 730


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_certificates(authority: Path, server: Path, name: str, host: str) -> None:
    """Make the authority (ca.key, ca.crt) and a server certificate (server.key, server.crt) that it vouches for."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority"[:64])])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    certificate = (
        _builder(subject, ca_name, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_private(authority / "ca.key", _private(ca_key))
    write_private(server / "server.key", _private(key))
    (server / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (server / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))


def make_site_key(private: Path, public: Path) -> None:
    """Make the key pair by which the server knows a site."""
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, formats = serialization.Encoding, serialization
    write_private(private, key.private_bytes(encoding.PEM, formats.PrivateFormat.OpenSSH, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(encoding.OpenSSH, formats.PublicFormat.OpenSSH) + b"\n")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ a little
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    others = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
        **others,
    )


def _names(host: str) -> Sequence[x509.GeneralName]:
    # The server's own processes talk to it over loopback, whatever its name is.
    return [
        x509.IPAddress(ipaddress.ip_address(name)) if is_address(name) else x509.DNSName(name)
        for name in dict.fromkeys((host, *LOOPBACK))
    ]


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
