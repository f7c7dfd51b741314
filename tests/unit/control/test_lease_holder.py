"""Who we are, who is certainly dead, and the thread that renews."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace

from rowferry.control.feed.lease import Claim, Heartbeat, Holder
from rowferry.errors import Fenced, MetaUnavailable

PATIENCE_S = 120.0  # an upper bound for a machine under load, never reached by working code


def _holder_of(pid: int) -> Holder:
    """Return the holder that a process of this pid would have named itself."""
    with open(f"/proc/{pid}/stat") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    return replace(Holder.here(), pid=pid, started=started, instance="other")


def test_here_names_this_process_and_each_call_is_another_instance() -> None:
    one, two = Holder.here(), Holder.here()
    assert one.pid == os.getpid()
    assert one.host and one.realm and one.started > 0
    assert one.instance != two.instance
    assert replace(one, instance="") == replace(two, instance="")
    assert Holder.from_json(one.to_json()) == one


def test_a_living_process_is_not_dead_and_an_ended_one_is() -> None:
    here = Holder.here()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        other = _holder_of(child.pid)
        assert not other.is_dead(here)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but not yet reaped
        assert other.is_dead(here)
    assert other.is_dead(here)


def test_a_reused_pid_is_noticed() -> None:
    here = Holder.here()
    assert not replace(here, instance="x").is_dead(here)
    assert replace(here, started=here.started - 1).is_dead(here)


def test_nothing_is_known_about_other_machines_and_containers() -> None:
    here = Holder.here()
    gone = replace(here, started=here.started - 1)
    assert not replace(gone, host="elsewhere").is_dead(here)
    assert not replace(gone, realm="another boot or namespace").is_dead(here)
    assert not replace(gone, realm="").is_dead(replace(here, realm=""))


def _claim(ttl_s: float) -> Claim:
    return Claim("feed", Holder.here(), 1, ttl_s)


def test_heartbeat_renews_until_closed() -> None:
    claim, seen = _claim(0.03), []
    enough = threading.Event()

    def renew(what: Claim, now: float) -> None:
        seen.append((what, now))
        if len(seen) >= 3:
            enough.set()

    with Heartbeat(renew, claim, clock=lambda: 42.0) as beat:
        assert enough.wait(PATIENCE_S)
    assert not beat.lost.is_set()
    assert set(seen) == {(claim, 42.0)}
    assert "lease-feed" not in [t.name for t in threading.enumerate()]


def test_heartbeat_tells_at_once_that_another_owner_was_seen() -> None:
    told: list[Exception] = []
    calls = []

    def renew(_claim: Claim, _now: float) -> None:
        calls.append(1)
        raise Fenced("taken over")

    with Heartbeat(renew, _claim(0.3), on_lost=told.append) as beat:
        assert beat.lost.wait(PATIENCE_S)
    assert [str(e) for e in told] == ["[RF-2002] taken over"]
    assert beat.error is told[0]
    assert len(calls) == 1


def test_heartbeat_survives_a_failed_renewal() -> None:
    calls: list[int] = []
    again = threading.Event()

    def renew(_claim: Claim, _now: float) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise MetaUnavailable("database is locked")
        again.set()

    with Heartbeat(renew, _claim(0.03), clock=lambda: 42.0) as beat:  # no time passes
        assert again.wait(PATIENCE_S)
        assert not beat.lost.is_set()


def test_heartbeat_gives_up_when_nothing_can_be_renewed_for_a_time_to_live() -> None:
    now = [100.0]
    calls: list[float] = []

    def renew(_claim: Claim, asked_at: float) -> None:
        calls.append(asked_at)
        now[0] += 0.02  # as if each try took that long
        raise ConnectionError("no route")  # not ours: counts as "try again"

    with Heartbeat(renew, _claim(0.05), clock=lambda: now[0]) as beat:
        assert beat.lost.wait(PATIENCE_S)
    assert isinstance(beat.error, ConnectionError)
    assert len(calls) == 3


def test_closing_from_the_callback_does_not_wait_for_itself() -> None:
    closed = threading.Event()
    beats: list[Heartbeat] = []
    ready = threading.Event()

    def on_lost(_error: Exception) -> None:
        ready.wait(PATIENCE_S)
        beats[0].close()
        closed.set()

    def renew(_claim: Claim, _now: float) -> None:
        raise Fenced("taken over")

    beats.append(Heartbeat(renew, _claim(0.03), on_lost=on_lost))
    ready.set()
    assert closed.wait(PATIENCE_S)
