"""An Iceberg REST catalog: the one of Iceberg's own tests, in a web server of this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self
from xml.sax.saxutils import escape

import urllib3

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.java_server import JavaServer
from rowferry.testing.servers.maven import Jars

_ICEBERG: Final = "org.apache.iceberg:iceberg-core:1.10.0"
_JETTY: Final = "11.0.26"
# The web server reads from this what it is made of, so that nothing is compiled here.
# Its grammar comes from the server's own library, not from the address that names it.
_FORM: Final = """<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN"
  "https://www.eclipse.org/jetty/configure_10_0.dtd">
<Configure id="server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg>
    <New class="org.eclipse.jetty.server.ServerConnector">
      <Arg><Ref refid="server"/></Arg>
      <Set name="host">{host}</Set><Set name="port">{port}</Set>
    </New>
  </Arg></Call>
  <New id="catalog" class="org.apache.iceberg.jdbc.JdbcCatalog">
    <Call name="initialize"><Arg type="String">rest</Arg><Arg><Map>
      <Entry><Item>uri</Item><Item>jdbc:sqlite:{folder}/catalog.db</Item></Entry>
      <Entry><Item>warehouse</Item><Item>file://{folder}/warehouse</Item></Entry>
      <Entry><Item>jdbc.schema-version</Item><Item>V1</Item></Entry>
    </Map></Arg></Call>
  </New>
  <Set name="handler"><New class="org.eclipse.jetty.servlet.ServletContextHandler">
    <Call name="addServlet">
      <Arg><New class="org.eclipse.jetty.servlet.ServletHolder"><Set name="servlet">
        <New class="org.apache.iceberg.rest.RESTCatalogServlet"><Arg>
          <New class="org.apache.iceberg.rest.RESTCatalogAdapter"><Arg>
            <Ref refid="catalog"/>
          </Arg></New>
        </Arg></New>
      </Set></New></Arg>
      <Arg>/*</Arg>
    </Call>
  </New></Set>
</Configure>
"""
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10))


class IcebergRest(JavaServer):
    """A REST catalog of tables in directories of this machine; what it knows survives a restart."""

    jars = Jars(
        "iceberg-rest-1.10.0",
        libraries=(
            _ICEBERG,
            f"{_ICEBERG}:tests",
            f"org.eclipse.jetty:jetty-servlet:{_JETTY}",
            f"org.eclipse.jetty:jetty-xml:{_JETTY}",
            "org.xerial:sqlite-jdbc:3.50.3.0",
            "org.slf4j:slf4j-simple:2.0.17",
        ),
    )

    def __init__(self, folder: Path, java_options: Sequence[str] = ()) -> None:
        super().__init__(folder, 1, java_options)

    @classmethod
    def start(cls, folder: Path, java_options: Sequence[str] = ()) -> Self:
        """Make a catalog without tables and return when it answers.

        Raises:
            SourceUnavailable: it cannot be had, or does not start.
        """
        cls.ensure()
        server = cls(folder, java_options)
        server._begin()
        return server

    @property
    def port(self) -> int:
        """Where it answers."""
        return self._ports[0]

    @property
    def url(self) -> str:
        """What a client of a REST catalog is told."""
        return f"http://{HOST}:{self.port}"

    # --- the process -----------------------------------------------------------------------------

    @property
    def _form(self) -> Path:
        return self.folder / "server.xml"

    def arguments(self) -> list[str]:
        """Return what follows Java's own options on the command line."""
        classes = ":".join([f"{self.jars.folder}/*", *map(str, _hadoop())])
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [quiet, "-cp", classes, "org.eclipse.jetty.xml.XmlConfiguration", str(self._form)]

    def prepare(self) -> None:
        """Write what the web server is made of."""
        form = _FORM.format(host=HOST, port=self.port, folder=escape(str(self.folder)))
        self._form.write_text(form)

    def answers(self) -> bool:
        """Whether the catalog lists its databases."""
        try:
            return _http.request("GET", f"{self.url}/v1/namespaces").status == 200
        except urllib3.exceptions.HTTPError:
            return False


def _hadoop() -> list[Path]:
    """Return the libraries by which Iceberg reaches files: those that Spark brings."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SourceUnavailable("pyspark is not installed")
    return sorted((Path(spec.origin).parent / "jars").glob("hadoop-client-*.jar"))
