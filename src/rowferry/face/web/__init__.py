"""The web page: files that a server gives to browsers as they are; nothing here is built.

In: the answers of `/api/rowferry/…` and of TiCDC's paths. `index.html` stands at `/`, all other
files below `/web/`. Nothing is loaded from elsewhere, and nothing is written but by buttons.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
