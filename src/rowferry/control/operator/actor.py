"""Who asks, what each role may do, and what is kept of it.

A face says who asks by `current_actor`; without one it is the process itself, which may do all.
Every verb of `Operations` names the role that it needs. What changes something is kept: as a line
of the log, and in the changefeed's history.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from rowferry.control.store.contract import MetaStore
from rowferry.errors import BadOption, RoleTooLow, RowferryError

LOG = logging.getLogger("audit")
ASKED: Final = "asked"  # what a line of history is about
_LONGEST: Final = 120  # of a name

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Role(IntEnum):
    """What somebody may do; each role may do all that the ones before it may."""

    VIEWER = 1  # look at everything; secrets are shown to nobody
    OPERATOR = 2  # pause, resume, hold and reset what there is
    ADMIN = 3  # say which data go where: create, change, remove; ask new addresses

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def read(cls, word: str, where: str) -> Role:
        """Return the role of a word.

        Raises:
            BadOption: there is none; `where` names the setting.
        """
        known = {str(role): role for role in cls}.get(word.strip().lower())
        if known is None:
            raise BadOption(f"{where}: the role must be one of {', '.join(map(str, cls))}")
        return known


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody who asks.

    Attributes:
        origin: the address that the request came from.
        face: by which way: rest or grpc.
    """

    name: str
    role: Role
    origin: str
    face: str

    def __str__(self) -> str:
        return f"{shown(self.name)} ({self.role}) from {shown(self.origin)} by {self.face}"


def shown(text: str) -> str:
    """Return a stranger's word for a line of the log: short, and without line ends."""
    return "".join(c if c.isprintable() else "?" for c in text[:_LONGEST])


current_actor: ContextVar[Actor | None] = ContextVar("current_actor", default=None)


def require(role: Role, what: str) -> None:
    """Refuse whoever asks now unless he has this role.

    Raises:
        RoleTooLow: he has a lower one.
    """
    actor = current_actor.get()
    if actor is not None and actor.role < role:
        LOG.warning("%s: refused to %s, which needs the role %s", what, actor, role)
        raise RoleTooLow(
            f"{what} needs the role {role}; {shown(actor.name)} has the role {actor.role}"
        )


class _OnStore(Protocol):
    @property
    def store(self) -> MetaStore: ...


S = TypeVar("S", bound=_OnStore)
Method = Callable[Concatenate[S, P], R]


def looks(method: Method[S, P, R]) -> Method[S, P, R]:
    """Let everybody who has a role call a method."""
    return _marked(method, Role.VIEWER)


def foresees(method: Method[S, P, R]) -> Method[S, P, R]:
    """Let only admins call a method that changes nothing: it asks addresses that they name."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        require(Role.ADMIN, "a dry run")
        return method(self, *args, **kwargs)

    return _marked(call, Role.ADMIN)


def acts_unseen(role: Role, what: str) -> Callable[[Method[S, P, R]], Method[S, P, R]]:
    """Let only those of a role call a method that changes nothing, so that nothing is kept."""

    def decorated(method: Method[S, P, R]) -> Method[S, P, R]:
        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            require(role, what)
            return method(self, *args, **kwargs)

        return _marked(call, role)

    return decorated


def acts(role: Role) -> Callable[[Method[S, P, R]], Method[S, P, R]]:
    """Let only those of a role call a method, and keep who called it and how it ended.

    Its first argument is the changefeed's id, or what is wanted of a new one.
    """

    def decorated(method: Method[S, P, R]) -> Method[S, P, R]:
        verb = method.__name__.replace("_", " ")

        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            actor = current_actor.get()
            if actor is None:
                return method(self, *args, **kwargs)
            require(role, verb)
            try:
                outcome = method(self, *args, **kwargs)
            except RowferryError as err:
                _keep(self.store, actor, verb, _named(args, None), f"[{err.code}]")
                raise
            except Exception:
                _keep(self.store, actor, verb, _named(args, None), "failed inside")
                raise
            if not getattr(outcome, "dry_run", False):
                _keep(self.store, actor, verb, _named(args, outcome), "done")
            return outcome

        return _marked(call, role)

    return decorated


def role_of(method: Callable[..., Any]) -> Role:
    """Return the role that a verb needs."""
    role: Role = method.__dict__["needs"]
    return role


def _marked(method: F, role: Role) -> F:
    method.__dict__["needs"] = role
    return method


def _named(args: tuple[Any, ...], outcome: Any) -> str:
    """Return the changefeed that a call is about; empty: none that is known."""
    made = getattr(outcome, "feed", None)
    if made is not None and not isinstance(args[0], str):
        return str(made.id)
    return args[0] if args and isinstance(args[0], str) else ""


def _keep(store: MetaStore, actor: Actor, verb: str, changefeed: str, result: str) -> None:
    """Write the line of the log and, where it is about a changefeed, that of its history."""
    LOG.info(
        "%s %s, asked by %s: %s",
        *(verb, shown(changefeed), actor, result),
        extra={"changefeed": shown(changefeed)},
    )
    if not changefeed:
        return
    details = {
        "verb": verb,
        "by": shown(actor.name),
        "role": str(actor.role),
        "from": shown(actor.origin),
        "result": result,
    }
    try:
        # Ids that never were must not fill the database.
        if store.feed(changefeed) is not None or store.history(changefeed, 1):
            store.note(changefeed, ASKED, details)
    except RowferryError as err:
        LOG.warning("the history of %s does not have this: %s", shown(changefeed), err)
