"""The decisions of a driver's loop, for both readers: what to do next, and when to pause, stop or give up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from brew.driver.limits import CircuitBreaker, GiveUpPolicy
from brew.driver.partitions import PartitionSurvey, missing_topics
from brew.driver.run_context import RunContext
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused, TransformFailed
from brew.kafka.topics import Topic
from brew.outcome import GOOD, Outcome, Status
from brew.planner import PartitionFacts, Plan, plan_ranges


class SurveyFailedError(BrewError):
    """The brokers did not answer; survey again after ``pause_s`` seconds."""

    def __init__(self, pause_s: float, detail: str) -> None:
        super().__init__(detail)
        self.pause_s = pause_s


class WorkPlanner:
    """Surveys partitions, plans ranges, and reconciles outcomes, for the partitions owned now; for one thread."""

    def __init__(self, shared: RunContext) -> None:
        self._shared = shared
        self.survey = PartitionSurvey(shared)
        self._give_up = GiveUpPolicy(shared.preflight.settings)
        self._breaker = CircuitBreaker(shared.preflight.settings.max_rejected, shared.preflight.settings.dead_letter)

    def take_ownership(self, idle: Callable[[int], bool]) -> bool:
        """Hand over ``idle`` partitions that are due to other drivers; True if the owned partitions changed."""
        owned = self._shared.ownership.refresh(idle)
        changed = owned != self.survey.owned
        self.survey.owned = owned
        if changed:
            self._give_up.keep_denials(owned)
        return changed

    def survey_partitions(self, pick: Callable[[Topic], Iterable[int]]) -> tuple[list[PartitionFacts], bool]:
        """
        Return the facts of the partitions that ``pick`` selects, and whether they are complete.

        Raises:
            SurveyFailedError: the brokers did not answer.
            Refused: going on would lose or duplicate records, or there was no progress for too long.
        """
        try:
            return self.survey.read(pick)
        except (KafkaFailure, DeadlineExceeded) as error:
            self._shared.progress.unanswered(str(error))
            self.survey.renew_clients()
            raise SurveyFailedError(self.failed("survey", str(error)), str(error)) from error

    def plan(self, facts: Sequence[PartitionFacts], max_records: int, *, complete: bool = True) -> Plan:
        """Return the ranges to transact; the plan counts as drained only if ``facts`` are ``complete``."""
        plan = plan_ranges(facts, max_records, self._shared.preflight.goals)
        return Plan(plan.ranges, plan.blocked, plan.drained and complete).split(self.survey.owned)

    def idle(self, plan: Plan, *, others_work: bool = False) -> None:
        """
        Record that nothing can be transacted now, except by another lane; raises `Refused` if a drain made no progress
        for too long.
        """
        self._give_up.succeeded()
        if others_work:
            self._give_up.progressed()
        elif self._shared.preflight.goals is not None:
            self._give_up.blocked(plan.blocked, plan.owned_by_others)

    def reconcile(self, outcomes: Sequence[Outcome]) -> float:
        """
        Update the positions from outcomes; return the seconds to pause after a failure, else 0.

        Raises:
            Refused: there was no progress for too long, or a partition has been denied for too long.
            TransformFailed: the transformation raised an exception that ends the run.
        """
        if any(outcome.status is Status.CRASHED for outcome in outcomes):
            self._shared.stop.set()
            return 0.0
        for outcome in outcomes:
            self.survey.apply_outcome(outcome)
            self._give_up.check_denial(outcome)
        failed = next((outcome for outcome in outcomes if outcome.status is Status.TRANSFORM_FAILED), None)
        if failed is not None:
            raise TransformFailed(failed.detail)
        bad = [outcome for outcome in outcomes if outcome.status not in GOOD]
        if len(bad) < len(outcomes):
            self._give_up.progressed()
        if bad:
            return self.failed(f"partition {bad[0].partition} last ended {bad[0].status.value}", bad[0].detail)
        self._give_up.succeeded()
        return 0.0

    def check_rejections(self, outcome: Outcome) -> None:
        """Count rejected records; raises `Refused` if there are too many (`brew.driver.limits`)."""
        self._breaker.apply_outcome(outcome)
        self._shared.first.apply_outcome(outcome)

    def failed(self, problem: str, detail: str) -> float:
        """Count a failure; return the pause before the next attempt. Raises `Refused` after --patience."""
        try:
            return self._give_up.failed(problem, detail)
        except Refused as refused:
            gone = self.survey.missing_outputs()
            if not gone:
                raise
            raise Refused(
                f"{refused}; {missing_topics(gone)}, and what was in there is deleted; run again, which creates what "
                "is missing; to write those records again, reset the group's offset before"
            ) from refused

    def close(self) -> None:
        self.survey.close()
