"""What browsers and Prometheus read: the page, the list of paths, metrics. Nothing from elsewhere.

The page itself is `rowferry.face.web`: its `index.html` at `/`, every
other file below `/web/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from rowferry.control.fleet.measures import REGISTRY
from rowferry.face.rest.guard import HEALTH
from rowferry.face.web import FOLDER as WEB

STATIC: Final = Path(__file__).parent / "static"
# Browsers keep the files, and ask each time whether they are still the same: after an upgrade, a
# page is never put together from old files and new ones.
_ASK_AGAIN: Final = {"cache-control": "no-cache"}
# Served without a login: they are the same for everybody and tell nothing about changefeeds.
OPEN_PATHS: Final = (
    *("/", "/web/", "/docs", "/docs/", "/openapi.json", "/favicon.ico"),
    *HEALTH,
)


def add_pages(app: FastAPI) -> None:
    """Add what browsers ask for, and `/metrics`."""
    paths = APIRouter()

    @paths.get("/metrics", tags=["servers"], summary="For Prometheus", response_class=Response)
    def metrics() -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    @paths.get("/", include_in_schema=False)
    def front() -> Response:
        return FileResponse(WEB / "index.html", headers=_ASK_AGAIN)

    @paths.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(STATIC / "docs.html")

    app.include_router(paths)
    app.mount("/docs", _Files(directory=STATIC))
    app.mount("/web", _Files(directory=WEB))


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return a file."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(_ASK_AGAIN)
        return response
