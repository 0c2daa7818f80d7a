"""
Bugs in the layers that decide, each with the unit test of that layer that must fail with it.

A bug replaces a piece of source text: most are one wrong comparison inside a function, where nothing can be patched
from outside. `python -m tests.mutants layers` puts each into a copy of the tree and runs its test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("benchmarks", "brew", "downstream", "operations", "pipeline", "proof", "sandbox", "tests")
_TEST_S = 120.0


@dataclass(frozen=True, slots=True)
class LayerBug:
    """``old`` occurs once in ``file``; replaced by ``new``, ``test`` must fail, or pass if the change is harmless."""

    name: str
    wrong: str
    file: str
    old: str
    new: str
    test: str

    @property
    def layer(self) -> str:
        """The folder of the file, for the page."""
        return str(Path(self.file).parent)

    @property
    def tested_by(self) -> str:
        return self.test.rpartition("::")[2]


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy of the tree whose files may be changed."""
    with tempfile.TemporaryDirectory(prefix="brew-layers-") as name:
        home = Path(name)
        for folder in _COPIED:
            shutil.copytree(ROOT / folder, home / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", home)
        yield home


def is_red(bug: LayerBug, home: Path) -> bool:
    """Return whether the bug's test fails in the copy with the bug; the file is restored before this returns."""
    path = home / bug.file
    text = path.read_text()
    assert text.count(bug.old) == 1, f"{bug.file} does not hold {bug.old!r} once"
    path.write_text(text.replace(bug.old, bug.new))
    try:
        return not _passes(bug.test, home)
    finally:
        path.write_text(text)


def _passes(test: str, home: Path) -> bool:
    """Return whether pytest exits with 0 rather than 1; any other exit code is an error."""
    environment = {**os.environ, "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=_TEST_S
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.returncode == 0


_POSITIONS = "tests/unit/proof/test_checker_positions.py::"
_EDGES = "tests/unit/proof/test_checker_edges.py::"
_ROUNDS = "tests/unit/downstream/test_totals.py::"
_MEMBER = "tests/unit/brew/claims/test_claims_member.py::"
_FOLD = "tests/unit/brew/claims/test_claims_fold.py::"
_VIRTUAL = "tests/unit/downstream/test_virtual_workers.py::"
_REPLAY = "tests/unit/operations/test_dlq.py::"

_COMPARISON = "proof/checking/comparison.py"
_CHAIN = "proof/checking/positions.py"
_STREAM = "proof/checking/input_partition.py"
_TRANSACTIONS = "proof/checking/transactions.py"
_WORK = "downstream/totals/stages.py"
_CHANGELOG = "downstream/totals/state_store.py"
_HOLDER = "brew/claims/member.py"
_TABLE = "brew/claims/state.py"
_PARTITIONS = "downstream/virtual/partitions.py"
_REPLAYING = "operations/dlq/replay.py"

LAYER_BUGS: list[LayerBug] = [
    LayerBug(
        "duplicate-in-its-own-partition-only",
        "A duplicate counts only in the record's own output partition.",
        _COMPARISON,
        "        self._add(Name.DUPLICATE, stream",
        "        if record.partition == source.partition:\n            self._add(Name.DUPLICATE, stream",
        _POSITIONS + "test_a_duplicate_counts_in_whatever_output_partition_it_lies",
    ),
    LayerBug(
        "duplicate-above-the-offset-passed-over",
        "A second copy above the committed offset is not reported.",
        _COMPARISON,
        "                self._duplicate(stream, record, source)\n                return\n",
        "                return\n",
        _POSITIONS + "test_a_duplicate_above_the_committed_offset_is_one_too",
    ),
    LayerBug(
        "quick-look-at-dead-letters",
        "The fast check also accepts an enriched record on the dead-letter topic.",
        _COMPARISON,
        "quick = stream.topic == self._facts.output and partition in self._lanes",
        "quick = partition in self._lanes",
        _POSITIONS + "test_an_enriched_record_on_the_dead_letter_topic_is_corrupt",
    ),
    LayerBug(
        "torn-by-the-highest-of-the-last-stretch",
        "Only the highest source of a torn transaction is used.",
        _COMPARISON,
        "stream.note(partition, lowest, highest, run)\n        last",
        "stream.note(partition, highest, highest, run)\n        last",
        _POSITIONS + "test_the_evidence_of_a_torn_transaction_names_all_of_its_sources",
    ),
    LayerBug(
        "torn-sources-from-the-last-stretch",
        "The lowest source of a transaction is the one of its last section.",
        _STREAM,
        "known[0] = min(known[0], lowest)",
        "known[0] = lowest",
        _POSITIONS + "test_a_transactions_sources_reach_from_the_lowest_to_the_highest_of_all_its_stretches",
    ),
    LayerBug(
        "range-taken-by-the-highest",
        "A transaction belongs to the range of its highest source, whatever its lowest is.",
        _CHAIN,
        "if lowest >= span.until:",
        "if highest >= span.until:",
        _POSITIONS + "test_a_transaction_that_begins_in_the_range_before_its_own_is_torn_at_the_first_of_the_two",
    ),
    LayerBug(
        "straddler-behind-a-gap-let-go",
        "After a gap in the offset log, a transaction may overlap the end of another one's range.",
        _CHAIN,
        " and highest < span.until:\n                continue",
        ":\n                continue",
        _POSITIONS + "test_behind_a_gap_in_the_offset_log_a_range_still_has_an_end",
    ),
    LayerBug(
        "range-without-its-start",
        "Sources below a range's start are not checked.",
        _CHAIN,
        "highest >= span.until or lowest < (span.start or 0):",
        "highest >= span.until:",
        _POSITIONS + "test_a_transaction_is_torn_by_its_lowest_source_and_by_its_highest",
    ),
    LayerBug(
        "regression-against-the-highest",
        "A second regression is compared with the highest offset ever, not the current one.",
        _CHAIN,
        "before, self.last, self.by_hand, self._commits_missing = self.last, until, False, False",
        "before, self.last, self.by_hand, self._commits_missing = self.last, max(self.last or 0, until), False, False",
        _POSITIONS + "test_an_offset_that_is_committed_again_is_no_regression_and_one_below_is",
    ),
    LayerBug(
        "zombie-of-the-first-holder-only",
        "Only the first producer of a partition is remembered when others take over.",
        _CHAIN,
        "        self._holder = key[0]\n",
        "        self._holder = self._holder or key[0]\n",
        _POSITIONS + "test_a_producer_id_that_comes_back_after_two_others_is_a_zombie",
    ),
    LayerBug(
        "zombie-of-its-own-batches-only",
        "A fencing marker does not raise the epoch below which a write is a zombie's.",
        _TRANSACTIONS,
        "        self._top[producer_id] = max(epoch, self._top.get(producer_id, epoch))\n",
        "",
        _EDGES + "test_a_marker_of_a_higher_epoch_makes_the_one_below_a_zombie",
    ),
    LayerBug(
        "taken-kept-for-the-next-round",
        "Deltas from an aborted round still exist when the round begins again.",
        _WORK,
        "        self.dropped()\n        if fresh",
        "        if fresh",
        _ROUNDS + "test_deltas_that_a_round_took_are_added_once",
    ),
    LayerBug(
        "orders-kept-for-the-next-round",
        "Orders from an aborted round still exist when the round begins again.",
        _WORK,
        "        self._found = {}\n        return self._counted_before()",
        "        return self._counted_before()",
        _ROUNDS + "test_orders_that_a_round_took_are_gone_when_the_next_one_begins",
    ),
    LayerBug(
        "changes-kept-after-a-failed-commit",
        "The next commit writes the changes of a failed commit to the store.",
        _WORK,
        "self._found, self._changes = {}, {}",
        "self._found = {}",
        _ROUNDS + "test_a_commit_that_failed_changes_neither_the_store_nor_the_next_one",
    ),
    LayerBug(
        "seen-end-used-at-once",
        "The next restore begins at the changelog's end as seen now.",
        _WORK,
        "        self._least_end = end\n",
        "        self._least_end = end\n        self.store.write({}, replace(checkpoint, changelog=end))\n",
        _ROUNDS + "test_the_end_of_the_changelog_is_believed_after_a_commit",
    ),
    LayerBug(
        "end-before-it-is-settled",
        "Restore and recomputation read to the first end they see, with a transaction open below it.",
        _CHANGELOG,
        "        if not waiting:\n",
        "        if True:\n",
        _ROUNDS + "test_a_restore_reads_to_the_end_of_what_is_decided",
    ),
    LayerBug(
        "sure-from-the-heartbeats-answer",
        "An owner relies on its claim for two intervals, counted from its heartbeat's acknowledgment.",
        _HOLDER,
        "Holding(token, position, sent + 2 * membership.interval_s, owner.topic_id)",
        "Holding(token, position, self._now() + 2 * membership.interval_s, owner.topic_id)",
        _MEMBER + "test_two_members_are_never_sure_of_one_partition_at_once_however_slow_the_log_answers",
    ),
    LayerBug(
        "sure-from-the-claims-answer",
        "The same, counted from a claim's acknowledgment, where no heartbeat follows.",
        _HOLDER,
        "Holding(offset, owner.position, sent + 2 * membership.interval_s, owner.topic_id)",
        "Holding(offset, owner.position, self._now() + 2 * membership.interval_s, owner.topic_id)",
        _MEMBER + "test_a_claim_whose_heartbeat_fails_is_sure_from_the_moment_it_was_written",
    ),
    LayerBug(
        "holding-without-its-token",
        "Work done under an earlier claim of the same member counts for the current one.",
        _HOLDER,
        "partition in self.holdings and self.holdings[partition].token == holding.token",
        "partition in self.holdings",
        _MEMBER + "test_a_holding_of_an_earlier_claim_is_nobodys_any_more",
    ),
    LayerBug(
        "claimed-messages-not-heard",
        "A claim of messages does not count as a sign of life.",
        _TABLE,
        "owner.position, owner.last_heartbeat_ms = message.proposed_last_offset, time_ms",
        "owner.position = message.proposed_last_offset",
        _FOLD + "test_a_claim_of_messages_is_heard_as_a_heartbeat_is",
    ),
    LayerBug(
        "token-good-for-anybody",
        "A write with the right token is accepted from any member.",
        _TABLE,
        "owner.token != message.token or owner.client_id != message.client_id",
        "owner.token != message.token",
        _FOLD + "test_a_token_is_good_for_its_owner_only",
    ),
    LayerBug(
        "retry-after-the-revocation",
        "A failed record is retried after its partition was revoked.",
        _PARTITIONS,
        "if offset > held.limit:",
        "if offset > held.limit and not piece.failures:",
        _VIRTUAL + "test_a_record_that_keeps_failing_is_not_tried_again_once_its_partition_is_gone",
    ),
    LayerBug(
        "marks-followed-not-settled",
        "A replay reads the visible marks, but not those whose transaction is still ending.",
        _REPLAYING,
        "self._replay_log.read_to_end(self._topics.admin, deadline)",
        "self._replay_log.follow(self._topics.admin, deadline)",
        _REPLAY + "test_a_letter_whose_mark_is_seen_behind_the_fence_only_is_not_written_back",
    ),
    LayerBug(
        "marked-before-the-commit",
        "A dead letter counts as replayed before its transaction is committed.",
        _REPLAYING,
        "            next_offset = self._next_offset(letters, committed)\n",
        "            next_offset = self._next_offset(letters, committed)\n"
        "            self._replay_log.offsets.update(record.letter.offset for record in records)\n",
        _REPLAY + "test_a_transaction_that_failed_marks_nothing",
    ),
    LayerBug(
        "watchdog-dead-behind-a-fork",
        "A process forked from a watched one, as Spark's workers are, has no watchdog of its own.",
        "brew/watchdog.py",
        "watchdog = _watchdog(os.getpid())",
        "watchdog = _watchdog(0)",
        "tests/unit/brew/test_watchdog.py::test_a_call_that_hangs_ends_the_process_and_says_where",
    ),
    LayerBug(
        "return-behind-a-name",
        "A carriage return between a member's name and its colon hides that the name occurs twice.",
        "pipeline/enrichment.py",
        " or _TAB in value or _RETURN in value:",
        " or _TAB in value:",
        "tests/unit/pipeline/test_enrich.py::test_no_blank_behind_a_name_hides_that_it_stands_twice",
    ),
    LayerBug(
        "older-answer-granted",
        "After a failed survey, a partition is granted from the previous one, which may say that there is no position.",
        "brew/driver/lease_coordinator.py",
        "            self._facts = {}\n            self._next_survey = time.monotonic() + error.pause_s\n",
        "            self._next_survey = time.monotonic() + error.pause_s\n",
        "tests/unit/brew/driver/test_lease_coordinator.py::"
        "test_what_came_back_is_granted_by_a_new_answer_of_the_brokers_only",
    ),
    LayerBug(
        "log-asked-before-position",
        "The end of the log is read before the position, so a busy group seems to be past the end.",
        "brew/driver/partitions.py",
        """        positions = committed(self._reader, source.name, chosen, deadline)

        def behind""",
        """        logs = log_offsets(self.admin, source.name, chosen, deadline)
        positions = committed(self._reader, source.name, chosen, deadline)

        def behind""",
        "tests/unit/brew/driver/test_partitions.py::"
        "test_the_log_is_asked_behind_the_position_so_that_a_busy_group_is_never_ahead_of_it",
    ),
    LayerBug(
        "goal-one-short",
        "A drain considers a partition done one offset before its goal.",
        "brew/driver/assignments.py",
        "if goals is not None and position >= goals.get(partition, 0):",
        "if goals is not None and position >= goals.get(partition, 0) - 1:",
        "tests/unit/brew/driver/test_assignments.py::test_a_partition_is_done_at_its_goal_and_not_one_offset_before",
    ),
]

HARMLESS_IN_LAYERS: list[LayerBug] = [
    LayerBug(
        "taken-kept-after-a-commit",
        "Committed data is not dropped with the commit: the start of the next round drops it.",
        _WORK,
        "StoreCheckpoint(self._until, self._least_end, self._keys))\n        self.dropped()",
        "StoreCheckpoint(self._until, self._least_end, self._keys))",
        _ROUNDS + "test_a_commit_that_failed_changes_neither_the_store_nor_the_next_one",
    ),
    LayerBug(
        "stale-partitions-resumed",
        "A restart tries to resume stale partitions: the fold treats its heartbeats as late.",
        _HOLDER,
        "if owned.owner == me and not owned.free}",
        "if owned.owner == me}",
        _MEMBER + "test_a_restart_after_two_intervals_claims_like_everybody",
    ),
]
