"""The sections of the configuration that are about TLS; their files are read once when the configuration is."""

from pydantic import Field, model_validator

from gateway.config_types import Section, Switch, Text, refuse
from gateway.upstream.tls import TlsProblem, TlsSettings, check


class TlsConfig(Section):
    """TLS to clients on `listen`, where a certificate is named; the files hold PEM and are read again on SIGHUP."""

    cert_file: Text | None = Field(default=None, description="our certificate and its chain; null: plain HTTP")
    key_file: Text | None = Field(default=None, description="its key, without password; null: in `cert_file` too")
    ca_file: Text | None = Field(default=None, description="if set, clients need a certificate signed by one of these")

    @model_validator(mode="after")
    def _check_files(self) -> "TlsConfig":
        if self.ca_file is not None and self.cert_file is None:
            refuse("ca_file asks clients for certificates, which needs TLS: name cert_file too")
        _check_files(self.settings)
        return self

    @property
    def settings(self) -> TlsSettings:
        """The same for the server."""
        return TlsSettings(self.ca_file, self.cert_file, self.key_file)


def _check_files(settings: TlsSettings) -> None:
    try:
        check(settings)
    except TlsProblem as problem:
        refuse(str(problem))


class UpstreamTlsConfig(Section):
    """TLS to engines whose url is https; the files hold PEM and are read once."""

    ca_file: Text | None = Field(default=None, description="certificates to trust; null: those of the system")
    cert_file: Text | None = Field(default=None, description="our own certificate, for engines that ask for one")
    key_file: Text | None = Field(default=None, description="its key, without password; null: in `cert_file` too")
    verify: Switch = Field(default=True, description="false believes any certificate: for tests alone")
    server_name: Text | None = Field(
        default=None, description="the name that engines' certificates must have; null: the url's host"
    )

    @model_validator(mode="after")
    def _check_files(self) -> "UpstreamTlsConfig":
        _check_files(self.settings)
        return self

    @property
    def settings(self) -> TlsSettings:
        """The same for the client of engines."""
        return TlsSettings(self.ca_file, self.cert_file, self.key_file, self.verify, self.server_name)
