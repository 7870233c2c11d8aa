"""Certificates for the hosts of a group: an authority of its own, and one for each host with all of its names.

What it decides: a client checks the name or the address that it dialled, so both are in. A certificate with a common
name only, as old recipes make it, is refused by every client of today.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS: Final = datetime.timedelta(days=3 * 365)
AN_HOUR: Final = datetime.timedelta(hours=1)  # clocks differ
AUTHORITY: Final = "the authority of a softmutex group"


def write_certificates(where: Path, names: Mapping[str, Sequence[str]]) -> None:
    """`ca.pem` and `ca.key`, and `HOST.pem` and `HOST.key` for each host with the names and addresses that it has."""
    where.mkdir(mode=0o700)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    write_pair(where, "ca", certificate(AUTHORITY, authority_key, authority_key, ()), authority_key)
    for host, known_as in names.items():
        key = ec.generate_private_key(ec.SECP256R1())
        write_pair(where, host, certificate(host, key, authority_key, known_as), key)


def certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, names: Sequence[str]
) -> x509.Certificate:
    """Without names it is the authority's own."""
    now, is_authority = datetime.datetime.now(datetime.UTC), not names
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - AN_HOUR)
        .not_valid_after(now + YEARS)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    if names:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([general(name) for name in names]), critical=False)
    return builder.sign(authority, hashes.SHA256())


def named(subject: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])


def general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_pair(where: Path, name: str, made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for suffix, content, mode in (
        (".pem", made.public_bytes(serialization.Encoding.PEM), 0o644),
        (".key", private, 0o600),
    ):
        with os.fdopen(os.open(where / f"{name}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
