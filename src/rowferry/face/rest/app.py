"""The HTTP face of a server, put together from its parts."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from rowferry.control.operator.operations import Operations
from rowferry.face.about import About
from rowferry.face.gate import Gate
from rowferry.face.names import ServerNames
from rowferry.face.rest.changefeeds import changefeed_paths
from rowferry.face.rest.failures import install
from rowferry.face.rest.fleet import fleet_paths
from rowferry.face.rest.guard import Guard
from rowferry.face.rest.own import own_paths
from rowferry.face.rest.pages import OPEN_PATHS, add_pages
from rowferry.face.rest.turns import Turns
from rowferry.face.sources import Sources

__all__ = ["About", "Gate", "Sources", "create_app"]

_WORDS = """\
TiCDC's open API v2, with `source_uri` beside `sink_uri`, and our own paths below `/api/rowferry`.
Errors are `{"error_msg": "[RF-…] one line", "error_code": "CDC:Err…"}`. Secrets are never returned.
"""


def create_app(
    operations: Operations,
    about: About,
    gate: Gate | None = None,
    sources: Sources | None = None,
    names: ServerNames | None = None,
    turns: Turns | None = None,
) -> FastAPI:
    """Return the app of a server.

    Args:
        operations: what requests are carried out with.
        about: the server itself.
        gate: who may enter; None: everyone.
        sources: for requests that name no source; None: such requests are refused.
        names: under which it may be asked; None: the one that `about` has.
        turns: how many requests are carried out at once; None: as many as is usual.
    """
    app = FastAPI(
        title="Rowferry",
        version=about.version,
        description=_WORDS,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        generate_unique_id_function=_unique_id,
    )
    install(app)
    known = sources or Sources()
    app.include_router(changefeed_paths(operations, about, known))
    app.include_router(fleet_paths(operations, about, known))
    app.include_router(own_paths(operations, about, known))
    add_pages(app)
    app.add_middleware(
        Guard,
        gate=gate or Gate(),
        open_paths=OPEN_PATHS,
        names=names or ServerNames.read([about.address]),
        turns=turns,
    )
    return app


def _unique_id(route: APIRoute) -> str:
    return f"{'-'.join(sorted(route.methods or ()))} {route.path_format}"
