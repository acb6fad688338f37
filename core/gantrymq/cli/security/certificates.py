"""`gantry cert dev`: a CA of one's own with certificates for a server and its clients, to try TLS out."""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.logs import complain

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

cert_app = typer.Typer()

DAYS: Final = 397
"""What browsers and some TLS libraries take at most."""

BEGUN: Final = timedelta(hours=1)
"""Valid since then: clocks of two machines differ."""


@cert_app.callback()
def about() -> None:
    """Certificates."""


@cert_app.command()
def dev(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Names and addresses of the server, beside those of this machine."),
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Where the files go.")] = Path("gantry-certs"),
    client: Annotated[
        list[str] | None, typer.Option(help="A client certificate with this CN; may be repeated.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Valid for so many days.")] = DAYS,
) -> None:
    """Make ca.pem, server.pem, server.key and CN.pem, CN.key of each client. A CA that is in the directory signs again.

    For trying out and for tests: whoever has ca.key is trusted as much as you are.
    """
    try:
        import cryptography  # noqa: F401  # asked for before files are made
    except ImportError:
        complain("the package cryptography is not installed: pip install 'gantrymq[auth]'")
        raise typer.Exit(EXIT_FAILED) from None
    for name in client or ():
        if not name or name.startswith(".") or "/" in name or not name.isprintable() or name in ("ca", "server"):
            complain(f"--client {name}: it becomes the name of a file: letters, digits, - and _")
            raise typer.Exit(EXIT_USAGE)
    own = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *(names or ())]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority = Authority(directory, days)
        authority.issue("server", "localhost", list(dict.fromkeys(own)))
        for name in client or ():
            authority.issue(name, name, [])
    except OSError as error:
        complain(f"{error.filename or directory}: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from error
    typer.echo(f"made in {directory}: {', '.join(authority.made)}")
    typer.echo(f"server: --set tls.cert={directory}/server.pem --set tls.key={directory}/server.key")
    typer.echo(f"clients trust {directory}/ca.pem; of client certificates: --set tls.client_ca={directory}/ca.pem")


class Authority:
    """A CA whose key and certificate lie in a directory; made if they do not."""

    def __init__(self, directory: Path, days: int) -> None:
        """Raises OSError."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        self._directory = directory
        self._end = timedelta(days=days)
        self.made: list[str] = []
        if (directory / "ca.key").exists() and (directory / "ca.pem").exists():
            key: Any = load_pem_private_key((directory / "ca.key").read_bytes(), None)
            self._key: EllipticCurvePrivateKey = key
            self._certificate: Certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("GantryMQ development CA")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = self._begun(name, name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = self._signed(builder.add_extension(usage, critical=True))
        self._write("ca", self._key, [self._certificate])

    def issue(self, file: str, common_name: str, names: list[str]) -> None:
        """Write `file`.pem and `file`.key. `names`: DNS names and addresses of a server; none: a client's. Raises OSError."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begun(_name(common_name), self._certificate.subject, key.public_key())
        kind = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([kind]), critical=False)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(name) for name in names]), critical=False
            )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        self._write(file, key, [self._signed(builder.add_extension(issuer, critical=False))])

    def _begun(self, subject: Any, issuer: Any, key: Any) -> Any:
        from cryptography import x509

        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BEGUN)
            .not_valid_after(now + self._end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _signed(self, builder: Any) -> Certificate:
        from cryptography.hazmat.primitives import hashes

        signed: Certificate = builder.sign(self._key, hashes.SHA256())
        return signed

    def _write(self, name: str, key: EllipticCurvePrivateKey, certificates: list[Certificate]) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public = b"".join([certificate.public_bytes(Encoding.PEM) for certificate in certificates])
        write_private(self._directory / f"{name}.key", private)
        (self._directory / f"{name}.pem").write_bytes(public)
        self.made += [f"{name}.pem", f"{name}.key"]


def write_private(path: Path, data: bytes) -> None:
    """A file that its owner alone may read, from its first byte on. Raises OSError."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)


def _name(common_name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
