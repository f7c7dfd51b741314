"""Server programs in Java from a Maven repository, kept in the servers' cache.

Maven asks the repository that the machine's own settings name, and checks hashes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.packages import Fetched

_FALLBACK: Final = "point ROWFERRY_SERVERS at a filled folder"
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>rowferry</groupId><artifactId>servers</artifactId><version>1</version>
<dependencies>
{dependencies}</dependencies>
</project>
"""


@dataclass(frozen=True, slots=True)
class Jars(Fetched):
    """What to fetch: libraries with all that they need, or one archive to unpack.

    Attributes:
        libraries: `group:artifact:version` of each library, perhaps with `:classifier`.
        archive: `group:artifact:version:tar.gz:classifier` instead of libraries.
    """

    libraries: tuple[str, ...] = ()
    archive: str = ""

    @property
    def lock(self) -> str:
        """Maven's own cache bears one writer only."""
        return "maven"

    def fetch(self, part: Path) -> None:
        """Fill a folder with the libraries, or with what the archive holds."""
        java()  # Maven's own words about a missing one are not clear
        if self.archive:
            self._fetch_archive(part)
        else:
            self._fetch_libraries(part)

    def _fetch_libraries(self, part: Path) -> None:
        pom = part.with_name("pom.xml")
        pom.write_text(_POM.format(dependencies="".join(map(_dependency, self.libraries))))
        copy = ["-DincludeScope=runtime", f"-DoutputDirectory={part}"]
        _maven(["--file", str(pom), "dependency:copy-dependencies", *copy], self.name)

    def _fetch_archive(self, part: Path) -> None:
        copy = [f"-Dartifact={self.archive}", f"-DoutputDirectory={part}"]
        _maven(["dependency:copy", *copy], self.name)
        (packed,) = part.glob("*.tar.gz")
        with tarfile.open(packed) as file:
            file.extractall(part, filter="data")
        packed.unlink()


def java() -> str:
    """Return the path of the Java program: the one in `JAVA_HOME`, else the one on the path.

    Raises:
        SourceUnavailable: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        raise SourceUnavailable(
            "test servers need Java 17 or newer and found none: install it "
            "(Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    return program


def _dependency(library: str) -> str:
    group, artifact, version, *classifier = library.split(":")
    inner = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
    inner += f"<version>{version}</version>"
    inner += "".join(f"<classifier>{one}</classifier>" for one in classifier)
    return f"<dependency>{inner}</dependency>\n"


def _maven(arguments: Sequence[str], name: str) -> None:
    """Run Maven; its failure is one line of ours."""
    program = shutil.which("mvn")
    if program is None:
        raise SourceUnavailable(
            f"{name} cannot be had: this machine has no mvn; "
            f"install it (Debian: apt-get install maven), or {_FALLBACK}"
        )
    command = [program, "--quiet", "--batch-mode", "-Dstyle.color=never", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        errors = [line for line in result.stdout.splitlines() if line.startswith("[ERROR]")]
        reason = (errors or [result.stderr.strip()[-300:]])[0].removeprefix("[ERROR] ")
        hidden = re.sub(r"://[^/@\s]*@", "://***@", reason)
        raise SourceUnavailable(f"cannot fetch {name}: {hidden[:400]}")
