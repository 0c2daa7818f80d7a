"""Put a direct run together: an office, terms, and a crew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.direct.director import Crew, Director
from pipeline.direct.office import Office
from pipeline.direct.terms import Terms
from pipeline.settings import Compilers, PipelineSettings
from pipeline.shared import Shared
from protocol.kafka.transaction import TransactionSettings

if TYPE_CHECKING:
    from pyspark import SparkContext

_HERE = "127.0.0.1"
_ARCHIVE_S = 60.0


def crew(
    settings: PipelineSettings,
    transaction: TransactionSettings,
    compilers: Compilers,
    *,
    watched: bool,
    traced: bool = False,
    kept: SparkContext | None = None,
) -> Crew:
    """The crew of this run; Spark is imported only when it is wanted. ``kept``, or a borrowed one, is not ended."""
    if settings.spark.absent:
        from pipeline.direct.here import LoneCrew  # noqa: PLC0415

        office = Office(_HERE, settings.direct.lease_s)
        alone = _terms(settings, transaction, _HERE, office)
        return LoneCrew(office, replace(alone, watched=watched, traced=traced))
    from pipeline import session  # noqa: PLC0415 - a third of a second
    from pipeline.direct.crews import SparkCrew  # noqa: PLC0415

    kept = kept or session.borrowed()
    context = kept or session.start_context(settings.spark, compilers)
    conf = context.getConf()
    host = conf.get("spark.driver.host", _HERE) or _HERE
    office = Office(conf.get("spark.driver.bindAddress", host) or host, settings.direct.lease_s)
    more = {"end_s": _ARCHIVE_S} if settings.spark.make_archive else {}
    terms = replace(_terms(settings, transaction, host, office), watched=watched, traced=traced)
    return SparkCrew(context, office, terms, **more, kept=kept is not None)


def director(shared: Shared, hired: Crew) -> Director:
    return Director(shared, hired)


def _terms(settings: PipelineSettings, transaction: TransactionSettings, host: str, office: Office) -> Terms:
    return Terms(
        host,
        office.port,
        office.token,
        settings.input,
        transaction,
        settings.limits,
        settings.direct,
        settings.crash,
        settings.max_records_per_transaction,
        settings.journal,
        settings.profiles,
    )
