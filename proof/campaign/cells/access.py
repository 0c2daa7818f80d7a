"""Loss of access during a run: ACLs, the password, trust in the brokers' certificate."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from brew import acl
from brew.acl import Kind, Operation, ResourceNames, Right
from brew.client_config import load
from brew.connection import SCRAM, Secret
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.kafka import cluster_admin
from brew.names import ExitCode
from proof.campaign.cell import CONNECTOR, CellTable, Need
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment

CELLS = CellTable(bound_s=20.0, limit_s=300.0, secure=True)
_ASK_S, _BOUND_S, _START_S = 20.0, 20.0, 60.0
_USER = "pipeline"
_PRINCIPAL = f"User:{_USER}"
_COMMITS = 10
_TIMED_OUT_S = 40.0
"""The writers' transaction time-out (20 s), plus the interval at which brokers look for expired transactions (10 s)."""
_SPARK = ("--master", "local[2]")
_JAVA_SAYS = "TopicAuthorizationException"
# Rights that a run needs repeatedly; it needs the others only at its start.
_ALWAYS = (Kind.GROUP, Kind.TRANSACTIONAL_ID)


def _rights(stage: CellEnvironment) -> Sequence[Right]:
    names = stage.names
    return acl.rights_of(_USER, ResourceNames(names.input, names.output, names.dead_letter, names.group))


def _grant(stage: CellEnvironment, *granted: Right) -> None:
    cluster_admin.grant(stage.cluster.admin, granted or _rights(stage), _PRINCIPAL, Deadline(_ASK_S))


def _revoke(stage: CellEnvironment, right: Right) -> None:
    taken = cluster_admin.revoke(stage.cluster.admin, [right], _PRINCIPAL, Deadline(_ASK_S))
    stage.fire("rights_revoked", taken)


def _writer(stage: CellEnvironment, *options: str) -> Program:
    """Start the program under test, as a user with minimal rights."""
    return stage.writer("--follow", *_as_user(stage), *options)


def _as_user(stage: CellEnvironment) -> tuple[str, ...]:
    return "--client-config", str(stage.sandbox.client_config(_USER)), "--max-records-per-transaction", "100"


def _refused(stage: CellEnvironment, writer: Program, *words: str, heal: Callable[[], object] | None = None) -> None:
    """Check that the writer ends, names what is missing, and leaves nothing open; ``heal``: called before the last."""
    try:
        code = writer.wait(Deadline(_BOUND_S * stage.slack))
    except DeadlineExceeded:
        running = f"{writer.name} was still running {_BOUND_S:g} s after the fault ({words[-1].strip()})"
        stage.find("access-unnoticed", running)
        writer.abort()
        if heal is not None:
            heal()  # or the next run could not continue either
        return
    message = writer.last_output()
    missing = [word for word in words if word not in message]
    if code != ExitCode.REFUSED or missing:
        stage.find("unnamed-refusal", f"{writer.name} ended with {code}, without {missing}: {message}")
        return
    stage.fire("named_errors")
    if heal is not None:
        heal()
    # A client without the right or without access can't abort either: brokers do it after the transaction time-out.
    wait = Deadline(_TIMED_OUT_S)
    while (left := stage.open_transactions()) and not wait.expired():
        stage.pause(1.0)
    if left:
        found = f"{len(left)} transactions left open after the fault ({words[-1].strip()}), the first {left[0]}"
        stage.find("left-open", found)


@CELLS("F36-acl", "each right revoked in turn", "authorizer", needed={"rights_revoked": 5, "named_errors": 5})
def revoked(stage: CellEnvironment) -> None:
    """Each right that a run needs repeatedly is revoked under load, and granted again."""
    _grant(stage)
    with stage.feeding():
        stage.orders(1000, "--transactional")
        for right in _rights(stage):
            always = Operation.READ if right.name == stage.names.input else Operation.WRITE
            if right.kind not in _ALWAYS and right.operation is not always:
                continue
            writer = _writer(stage)
            stage.await_commits(_COMMITS)
            _revoke(stage, right)
            _refused(stage, writer, "AUTHORIZATION", _PRINCIPAL, f"{right.operation} on {right.kind} ")
            _grant(stage, right)
        _resume(stage)


@CELLS(
    *("F36-acl-spark", "right to read revoked", "Spark's consumer"),
    needed=("rights_revoked", "named_errors"),
    path="spark",
    readers=(CONNECTOR,),  # it is about Spark's own consumer, in Java
    needs={Need.SPARK},
    bound_s=30.0,
)
def revoked_from_spark(stage: CellEnvironment) -> None:
    """Spark's Java consumer loses its right to read, though not to describe, which the driver uses; it gets it back."""
    read = next(right for right in _rights(stage) if right.name == stage.names.input)
    describe = replace(read, operation=Operation.DESCRIBE)
    _grant(stage)
    _grant(stage, describe)
    options = (*_as_user(stage), *_SPARK)
    with stage.at_work(*options, feed=300, commits=_COMMITS, seconds=_START_S * stage.slack) as writer:
        _revoke(stage, read)
        _refused(stage, writer, _JAVA_SAYS, _PRINCIPAL, f"{read.operation} on {read.kind} ")
        _grant(stage, read)
        _resume(stage, *_SPARK)


@CELLS("F36-password", "another password", "login", needed={"passwords_changed": 1, "named_errors": 2})
def password(stage: CellEnvironment) -> None:
    """An administrator changes the user's password during a run, and then restores the old one."""
    _grant(stage)
    old = load(stage.sandbox.client_config(_USER)).secrets["sasl.password"]
    with stage.at_work(*_as_user(stage), feed=300, commits=_COMMITS) as writer:
        _set_password(stage, Secret(secrets.token_urlsafe()))
        stage.fire("passwords_changed")
        _refused(stage, writer, "_AUTHENTICATION", _PRINCIPAL, "sasl.*")
        _refused(stage, _writer(stage), "_AUTHENTICATION", _PRINCIPAL, "sasl.*")
        _set_password(stage, old)
        _resume(stage)


def _set_password(stage: CellEnvironment, word: Secret) -> None:
    cluster_admin.set_passwords(stage.cluster.admin, {_USER: word}, SCRAM, Deadline(_ASK_S))


@CELLS("F36-certificate", "expired certificate", "TLS", needed=("certificates_expired", "named_errors"))
def expired(stage: CellEnvironment) -> None:
    """The brokers' certificate expires during a run; then they get a new one."""
    _grant(stage)
    with stage.at_work(*_as_user(stage), feed=300, commits=_COMMITS) as writer:
        stage.sandbox.run("certify", "--expired")
        stage.fire("certificates_expired")
        _refused(stage, writer, "_SSL", "expired", "ssl.*", heal=lambda: stage.sandbox.run("certify"))
        _resume(stage)


def _resume(stage: CellEnvironment, *options: str) -> None:
    """Start a new run once access is restored; it continues from the committed offset."""
    back = time.time()
    writer = _writer(stage, *options)
    stage.recovered(back)
    stage.await_commits(_COMMITS)
    stage.stop(writer)
