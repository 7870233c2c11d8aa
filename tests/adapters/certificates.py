"""A certificate authority for one test, and a certificate of 127.0.0.1 signed by it."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
MAY_SIGN_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def make_certificates(folder: Path, *names: str, subject: str = "127.0.0.1") -> tuple[Path, Path, Path]:
    """Paths of the certificate, its key, and the authority. `names` it is for, besides 127.0.0.1."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("an authority", authority_key, "an authority", authority_key, is_authority=True)
    certificate = _certificate(subject, key, "an authority", authority_key, is_authority=False, names=names)
    cert_file, key_file, ca_file = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    ca_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file, ca_file


def make_nameless(folder: Path) -> tuple[Path, Path, Path]:
    """As `make_certificates`, and the certificate has no common name: so etcd's gateway wants those of clients."""
    return make_certificates(folder, subject="")


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
    names: tuple[str, ...] = (),
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else []))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    # Python 3.13 refuses certificates that do not say whose key they hold and whose signed them.
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = builder.add_extension(signer, critical=False)
    if is_authority:
        builder = builder.add_extension(MAY_SIGN_CERTIFICATES, critical=True)
    else:
        own = [*map(x509.DNSName, names), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(own), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
