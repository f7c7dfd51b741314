"""Errors as TiCDC's clients read them: its code in `error_code`, our own line in `error_msg`."""

from __future__ import annotations

import difflib
import logging
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from rowferry.control.operator.ticdc_codes import ticdc_code
from rowferry.errors import (
    AccessDenied,
    AnswerLate,
    BadInput,
    BadOption,
    LoginDelayed,
    NotSupported,
    RequestTooLarge,
    RoleTooLow,
    RowferryError,
    ServerBusy,
    UnknownOption,
)
from rowferry.face.json_log import redacted
from rowferry.face.rest.bodies import KNOWN_KEYS

LOG = logging.getLogger(__name__)
INVALID: Final = "CDC:ErrAPIInvalidParam"
_INTERNAL: Final = "CDC:ErrInternalServerError"
_OURS: Final[dict[type[RowferryError], tuple[int, str]]] = {
    AccessDenied: (401, "CDC:ErrUnauthorized"),
    LoginDelayed: (429, "CDC:ErrUnauthorized"),
    RoleTooLow: (403, "CDC:ErrUnauthorized"),
    RequestTooLarge: (413, INVALID),
    NotSupported: (400, INVALID),
    ServerBusy: (429, "CDC:ErrServerIsBusy"),
    AnswerLate: (504, _INTERNAL),
}


def failure(
    error: RowferryError, status: int | None = None, code: str | None = None
) -> JSONResponse:
    """Return the answer to a request that ended with this error."""
    usual, known_as = _OURS.get(type(error)) or ticdc_code(error)
    form = {"error_msg": redacted(str(error)), "error_code": code or known_as}
    return JSONResponse(form, status or usual)


def internal_failure() -> JSONResponse:
    """Return the answer to a request that ended with an error nobody foresaw."""
    words = "[RF-0000] the server failed inside; its log has the details"
    return JSONResponse({"error_msg": words, "error_code": _INTERNAL}, 500)


def install(app: FastAPI) -> None:
    """Let every error of the app be answered in this form."""

    @app.exception_handler(RowferryError)
    def ours(request: Request, error: RowferryError) -> JSONResponse:
        return failure(error)

    @app.exception_handler(RequestValidationError)
    def not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        return failure(_explained(error.errors()[0]), 400, INVALID)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        words = {
            404: "there is no such path; /docs lists them",
            405: "this path does not take the method; /docs lists what it takes",
        }.get(error.status_code, "the body cannot be read as JSON")
        return failure(BadInput(words), error.status_code, INVALID)

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return internal_failure()


def _explained(wrong: dict[str, Any]) -> BadInput:
    """Return what is wrong with a request; its values, which may be secret, are not repeated."""
    where, *keys = wrong["loc"]
    path = ".".join(str(key) for key in keys)
    match wrong["type"]:
        case "json_invalid":
            return BadInput(f"the body is not JSON: {wrong['ctx']['error']}")
        case "extra_forbidden":
            near = difflib.get_close_matches(path.rsplit(".", 1)[-1], KNOWN_KEYS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return UnknownOption(f"unknown key {path!r} in the body{hint}")
        case "missing":
            return BadOption(f"the {where} lacks {path!r}" if path else "a JSON body is needed")
        case _:
            return BadOption(f"{path or 'the ' + str(where)}: {wrong['msg'].lower()}")
