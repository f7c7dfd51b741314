"""The states of a changefeed, and which verb leads from one to another: one table, nothing else."""

from __future__ import annotations

from enum import StrEnum

from rowferry.errors import IllegalMove


class State(StrEnum):
    """What a changefeed is doing; the words that users see in lists and answers."""

    NORMAL = "normal"
    WARNING = "warning"  # an error is being retried
    PENDING = "pending"  # wants to run, but no server can run it now
    STOPPED = "stopped"  # paused by an operator
    FAILED = "failed"  # gave up on an error; waits for an operator
    FINISHED = "finished"  # reached its target-ts
    REMOVED = "removed"

    @property
    def runs(self) -> bool:
        """Whether a server should be working on a changefeed in this state."""
        return self in (State.NORMAL, State.WARNING)


class Verb(StrEnum):
    """What can happen to a changefeed: first the operator's four verbs, then the server's."""

    PAUSE = "pause"
    RESUME = "resume"
    UPDATE = "update"
    REMOVE = "remove"
    WAIT = "wait"
    START = "start"
    FAULT = "fault"
    RECOVER = "recover"
    GIVE_UP = "give-up"
    REACH_TARGET = "reach-target"


INITIAL = State.NORMAL

MOVES: dict[tuple[State, Verb], State] = {
    (State.NORMAL, Verb.PAUSE): State.STOPPED,
    (State.NORMAL, Verb.REMOVE): State.REMOVED,
    (State.NORMAL, Verb.WAIT): State.PENDING,
    (State.NORMAL, Verb.FAULT): State.WARNING,
    (State.NORMAL, Verb.GIVE_UP): State.FAILED,
    (State.NORMAL, Verb.REACH_TARGET): State.FINISHED,
    (State.WARNING, Verb.PAUSE): State.STOPPED,
    (State.WARNING, Verb.REMOVE): State.REMOVED,
    (State.WARNING, Verb.WAIT): State.PENDING,
    (State.WARNING, Verb.FAULT): State.WARNING,
    (State.WARNING, Verb.RECOVER): State.NORMAL,
    (State.WARNING, Verb.GIVE_UP): State.FAILED,
    (State.WARNING, Verb.REACH_TARGET): State.FINISHED,
    (State.PENDING, Verb.PAUSE): State.STOPPED,
    (State.PENDING, Verb.REMOVE): State.REMOVED,
    (State.PENDING, Verb.START): State.NORMAL,
    (State.PENDING, Verb.GIVE_UP): State.FAILED,
    (State.STOPPED, Verb.RESUME): State.NORMAL,
    (State.STOPPED, Verb.UPDATE): State.STOPPED,
    (State.STOPPED, Verb.REMOVE): State.REMOVED,
    (State.FAILED, Verb.RESUME): State.NORMAL,
    (State.FAILED, Verb.UPDATE): State.FAILED,
    (State.FAILED, Verb.REMOVE): State.REMOVED,
    (State.FINISHED, Verb.RESUME): State.NORMAL,
    (State.FINISHED, Verb.REMOVE): State.REMOVED,
}


def possible(state: State) -> tuple[Verb, ...]:
    """Return the verbs that are allowed in a state, in the order of `Verb`."""
    return tuple(verb for verb in Verb if (state, verb) in MOVES)


def move(state: State, verb: Verb) -> State:
    """Return the state after `verb`.

    Raises:
        IllegalMove: not possible from this state; the text lists what is.
    """
    found = MOVES.get((state, verb))
    if found is None:
        allowed = ", ".join(possible(state)) or "nothing"
        raise IllegalMove(f"cannot {verb} a {state} changefeed; possible: {allowed}")
    return found
