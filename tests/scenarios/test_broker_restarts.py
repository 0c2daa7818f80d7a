"""
A broker is killed, and started again with its port and data, under every program that follows.

`make restarts RESTARTS=50` does it that often, with `RESTART_BY=stop` after an orderly stop. An only broker that shuts
down may answer that there are no brokers, and librdkafka 2.16 then stays silent (its issue 5301): a client that gets no
answer where a new one does is replaced (`is_cut_off`). Before that, totals and claims stood still after the first stop.

Before group coordinators were asked through kafka-python, an idle following run was aborted in 1 of 12 restarts.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.http_service import http_service
from harness.pipeline import Stage
from harness.programs import Running
from harness.servers import Broker, Names
from harness.waiting import POLL_S, until

from brew.claims import messages
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.offsets import committed_by, log_offsets
from brew.names import READ_COMMITTED
from sandbox.store import Postgres

RESTARTS = int(os.environ.get("RESTARTS") or 2)
ORDERLY = os.environ.get("RESTART_BY") == "stop"
AWAY_S = 6.0
"""A run asks every 5 s who is in its group: that question has to fall into the outage."""
BACK_S = 60.0
ORDERS = 20
ANNOUNCE_OUTAGES = ("direct", "connector", "ledger", "receive", "totals", "call", "claims")
"""Programs that say when no broker answers; the others show it."""


class Programs:
    """All programs that follow, on one broker; each has a group of its own."""

    def __init__(self, stage: Stage, connector_stage: Stage, url: str, database: str, folder: Path) -> None:
        self.stage, self.connector_stage = stage, connector_stage
        self.running: dict[str, Running] = {}
        self._commands = dict(self._of(url, database, folder))

    def _of(self, url: str, database: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
        follow = ["--master", "none", "--follow", "--progress", "json", "--no-probes"]
        yield "direct", ["pipeline", "run", *self.stage.options(), "--reader", "direct", *follow]
        yield "connector", ["pipeline", "run", *self.connector_stage.options(), "--reader", "connector", *follow]
        bootstrap = ["--bootstrap", self.stage.broker.bootstrap]
        names = self.stage.names
        group = ["--input", names.input, "--group", names.group]
        yield "lag", ["pipeline", "lag", *bootstrap, *group, "--watch", "--json"]
        yield "top", ["pipeline", "top", *self.stage.options(), "--json"]
        yield "ui", ["pipeline", "ui", *self.stage.options(), "--port", "0"]
        claims = ["--claims", names.topic("claims")]
        yield "show", ["pipeline", "show", names.input, *bootstrap, "--follow", "--json"]
        yield "watch", ["downstream", "claims", "watch", *bootstrap, *claims, "--json"]
        store = ["--database", database, "--schema", "restarts"]
        call = ["call", "--url", f"{url}/orders"]
        for name, words in {
            "ledger": ["ledger", *store],
            "receive": ["receive", *store],
            "totals": ["totals", "--state-dir", str(folder), "--output", names.topic("totals")],
            "call": call,
            "claims": [*call, "--ownership", "claims", "--flow", "at-least-once", *claims],
        }.items():
            options = [*bootstrap, "--topic", names.output, "--group", self.group(name)]
            yield name, ["downstream", *words, *options, "--follow", "--no-probes"]

    def group(self, name: str) -> str:
        return f"{self.stage.names.group}.{name}"

    def start(self, stack: contextlib.ExitStack) -> None:
        for name, command in self._commands.items():
            self.running[name] = stack.enter_context(self.stage.start([sys.executable, "-m", *command]))

    def all_live(self, when: str) -> None:
        dead = {name: program.wait(1) for name, program in self.running.items() if not program.alive()}
        assert dead == {}, f"{when}: " + "\n".join(f"{name}: exit {ran.code}: {ran.text}" for name, ran in dead.items())

    def count(self, name: str, words: str) -> int:
        return self.running[name].output().count(words)

    def await_announcements(self, words: str, times: int) -> None:
        """Once for each outage; on a machine that is busy a broker may be silent for seconds more than once."""
        for name in ANNOUNCE_OUTAGES:
            until(lambda name=name: self.count(name, words) >= times, f"{name} says {words}{times}", BACK_S)
            announced = re.findall("brokers-(away|back): ", self.running[name].output())
            assert announced == (["away", "back"] * len(announced))[: len(announced)], self.running[name].output()

    def behind(self) -> list[str]:
        """Those whose group does not stand at the end of what it reads."""
        ends = {stage.names.input: self._ends(stage.names.input) for stage in (self.stage, self.connector_stage)}
        groups = {"direct": (self.stage.names.group, self.stage.names.input)}
        groups["connector"] = (self.connector_stage.names.group, self.connector_stage.names.input)
        output = self.stage.names.output
        ends[output] = self._ends(output)
        groups |= {name: (self.group(name), output) for name in ("ledger", "receive", "totals", "call", "claims")}
        return [name for name, (group, topic) in groups.items() if self._positions(group, topic) != ends[topic]]

    def _ends(self, topic: str) -> dict[int, int]:
        partitions = range(topics.describe_one(self.stage.admin, topic, Deadline(20)).partitions)
        return {p: log.end for p, log in log_offsets(self.stage.admin, topic, partitions, Deadline(20)).items()}

    def _positions(self, group: str, topic: str) -> dict[int, int]:
        partitions = range(topics.describe_one(self.stage.admin, topic, Deadline(20)).partitions)
        positions = committed_by(self.stage.connection, group, topic, partitions, READ_COMMITTED, Deadline(20))
        return {p: 0 if position is None else position.offset for p, position in positions.items()}

    def ui_answers(self) -> bool:
        line = self.running["ui"].await_line(lambda line: line.startswith("live view at "))
        with urllib.request.urlopen(line.split()[-1], timeout=20) as page:
            return bool(page.status == 200)


@pytest.mark.longest(240 + 60 * RESTARTS)
def test_no_following_program_dies_of_a_broker_s_restart(
    alone: Broker, names: Names, postgres: Postgres, tmp_path: Path
) -> None:
    """Each lives, says once that the brokers are away and once that they are back, and goes on with new orders."""
    with http_service(lambda *_: 200) as url, contextlib.ExitStack() as stack:
        assert alone.cluster is not None
        stage, connector_stage = Stage(alone, names), Stage(alone, Names(f"{names.stem}-other"))
        for one in (stage, connector_stage):
            one.create(2, output=2)
        topics.create(
            stage.admin, [topics.TopicSpec(names.topic("claims"), messages.PARTITIONS, messages.CONFIG)], Deadline(30)
        )
        programs = Programs(stage, connector_stage, url, postgres.url, tmp_path)
        programs.start(stack)

        def go_on(when: str) -> None:
            for one in (stage, connector_stage):
                one.seed(ORDERS)
            deadline = Deadline(BACK_S)
            while behind := programs.behind():
                programs.all_live(when)
                outputs = "\n".join(f"{name}: {programs.running[name].output()[-2000:]}" for name in behind)
                assert not deadline.expired(), f"{when}: {behind} not at the end within {BACK_S:g} s\n{outputs}"
                time.sleep(POLL_S)

        go_on("at first")
        for number in range(1, RESTARTS + 1):
            when = f"restart {number} of {RESTARTS}"
            outage, lines_before = (
                Deadline(AWAY_S),
                {name: programs.count(name, "\n") for name in ("lag", "show", "top")},
            )
            alone.cluster.stop() if ORDERLY else alone.cluster.kill()
            time.sleep(outage.remaining_s())  # the questions of that time are what breaks programs
            programs.await_announcements("brokers-away: ", number)
            alone.cluster.restart(1)
            programs.await_announcements("brokers-back: ", number)
            go_on(when)
            for name, count in lines_before.items():
                until(lambda n=name, before=count: programs.count(n, "\n") > before, f"{when}: {name} goes on")
            assert programs.ui_answers()
            programs.all_live(when)
        for one in programs.running.values():
            one.terminate()
        codes = {name: one.wait(60).code for name, one in programs.running.items()}
    assert {name: code for name, code in codes.items() if code not in {0, 143}} == {}
