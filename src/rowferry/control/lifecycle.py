"""The states of a changefeed, and which verb leads from one to another: one table, nothing else."""

from __future__ import annotations

from enum import StrEnum

from rowferry.errors import IllegalMove


class FeedState(StrEnum):
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
        return self in (FeedState.NORMAL, FeedState.WARNING)


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


INITIAL = FeedState.NORMAL

MOVES: dict[tuple[FeedState, Verb], FeedState] = {
    (FeedState.NORMAL, Verb.PAUSE): FeedState.STOPPED,
    (FeedState.NORMAL, Verb.REMOVE): FeedState.REMOVED,
    (FeedState.NORMAL, Verb.WAIT): FeedState.PENDING,
    (FeedState.NORMAL, Verb.FAULT): FeedState.WARNING,
    (FeedState.NORMAL, Verb.GIVE_UP): FeedState.FAILED,
    (FeedState.NORMAL, Verb.REACH_TARGET): FeedState.FINISHED,
    (FeedState.WARNING, Verb.PAUSE): FeedState.STOPPED,
    (FeedState.WARNING, Verb.REMOVE): FeedState.REMOVED,
    (FeedState.WARNING, Verb.WAIT): FeedState.PENDING,
    (FeedState.WARNING, Verb.FAULT): FeedState.WARNING,
    (FeedState.WARNING, Verb.RECOVER): FeedState.NORMAL,
    (FeedState.WARNING, Verb.GIVE_UP): FeedState.FAILED,
    (FeedState.WARNING, Verb.REACH_TARGET): FeedState.FINISHED,
    (FeedState.PENDING, Verb.PAUSE): FeedState.STOPPED,
    (FeedState.PENDING, Verb.REMOVE): FeedState.REMOVED,
    (FeedState.PENDING, Verb.START): FeedState.NORMAL,
    (FeedState.PENDING, Verb.GIVE_UP): FeedState.FAILED,
    (FeedState.STOPPED, Verb.RESUME): FeedState.NORMAL,
    (FeedState.STOPPED, Verb.UPDATE): FeedState.STOPPED,
    (FeedState.STOPPED, Verb.REMOVE): FeedState.REMOVED,
    (FeedState.FAILED, Verb.RESUME): FeedState.NORMAL,
    (FeedState.FAILED, Verb.UPDATE): FeedState.FAILED,
    (FeedState.FAILED, Verb.REMOVE): FeedState.REMOVED,
    (FeedState.FINISHED, Verb.RESUME): FeedState.NORMAL,
    (FeedState.FINISHED, Verb.REMOVE): FeedState.REMOVED,
}


def possible(state: FeedState) -> tuple[Verb, ...]:
    """Return the verbs that are allowed in a state, in the order of `Verb`."""
    return tuple(verb for verb in Verb if (state, verb) in MOVES)


def move(state: FeedState, verb: Verb) -> FeedState:
    """Return the state after `verb`.

    Raises:
        IllegalMove: not possible from this state; the text lists what is.
    """
    new_state = MOVES.get((state, verb))
    if new_state is None:
        allowed = ", ".join(possible(state)) or "nothing"
        raise IllegalMove(f"cannot {verb} a {state} changefeed; possible: {allowed}")
    return new_state
