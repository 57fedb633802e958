"""A private certificate authority for tests, made with the `openssl` command, and servers' contexts."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in `folder`; every file it makes is PEM."""

    folder: Path

    @property
    def ca_file(self) -> str:
        """Its own certificate."""
        return str(self.folder / "ca.pem")

    def certificate(self, name: str, alternatives: str) -> tuple[str, str]:
        """Return (certificate, key) for `alternatives`, such as `IP:127.0.0.1` or `DNS:engine`."""
        cert, key, request = (str(self.folder / f"{name}.{end}") for end in ("pem", "key", "csr"))
        more = self.folder / f"{name}.ext"
        more.write_text(f"subjectAltName={alternatives}\n", encoding="ascii")
        openssl("req", "-newkey", *EC, "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed_by = ("-CA", self.ca_file, "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signed_by, "-days", "2", "-extfile", str(more), "-out", cert)
        return cert, key

    def server(self, certificate: tuple[str, str], clients: "Authority | None" = None) -> ssl.SSLContext:
        """Return the context of a server; with `clients`, it wants certificates of theirs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        if clients is not None:
            context.load_verify_locations(clients.ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


EC = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def authority(folder: Path) -> Authority:
    """Make an authority in `folder`, which must exist."""
    key, cert = str(folder / "ca.key"), str(folder / "ca.pem")
    openssl("req", "-x509", "-newkey", *EC, "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=CA")
    return Authority(folder)


def openssl(*arguments: str) -> None:
    """Run `openssl`; what it says is shown where it fails."""
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)  # noqa: S607
    assert done.returncode == 0, done.stderr
