"""The report card: what was seen, held against what was promised. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from pairbus.pairing.options import milliseconds
from pairbus.pairing.rules.health import Health
from pairbus.pairing.rules.ping import PING_TIMEOUT_MS_LONG
from pairbus.stage.book import Refusal, SentMessage
from pairbus.stage.drill.plan import MANUAL, DrillOptions, Outage

Verdict = Literal["pass", "fail", "not tested", "told"]
NAMED_MAX: Final = 20
"""Lost probes that the card names."""
PACE_MS: Final = 1_000
"""A send may have been under way when the outage began, and the next one comes by the rate."""


@dataclass(frozen=True, slots=True)
class Course:
    """What happened to one entity, in milliseconds of the steady clock; None: it did not happen."""

    entity: str
    suspect_ms: int | None = None
    failed_over_ms: int | None = None
    recovered_ms: int | None = None
    failovers: int = 0
    pings: int = 0
    is_read: bool = True
    """Whether the drill reads what arrives there; consumers of a queue that is not its own do that themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the card is made from."""

    drill: str
    begun_ms: int
    ended_ms: int
    """When the outage was over."""
    is_early: bool
    """Whether somebody ended the drill before its time."""
    courses: tuple[Course, ...]
    probes: tuple[SentMessage, ...]
    refusals: tuple[Refusal, ...]
    repeats_allowed: int
    """Re-sends of the drill's own pumps that were in doubt."""
    operations: int
    cost: str
    currency: str
    left_behind: tuple[str, ...] = ()
    """What could not be removed."""
    queues_created: tuple[str, ...] = ()
    """Backlog queues that did not exist before the drill. They stay: a client that found them meanwhile may use them."""


@dataclass(frozen=True, slots=True)
class Line:
    """One promise and what came of it."""

    name: str
    promise: str
    verdict: Verdict
    figure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The whole card; ``as_json`` is what ``--json`` prints."""

    drill: str
    outage: str
    is_early: bool
    lines: tuple[Line, ...]
    figures: dict[str, object] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no promise was broken."""
        return not any(line.verdict == "fail" for line in self.lines)

    def as_json(self) -> dict[str, object]:
        """One object of plain values."""
        return {
            "drill": self.drill,
            "outage": self.outage,
            "passed": self.passed,
            "ended_early": self.is_early,
            **self.figures,
            "lost_names": list(self.lost),
            "lines": [asdict(line) for line in self.lines],
        }


def judge(facts: Facts, options: DrillOptions, outage: Outage) -> Card:
    """Hold what was seen against what was promised."""
    judged = _Judge(facts, options, outage)
    lines = (
        *judged.reaction(),
        *judged.callers(),
        *judged.way_back(),
        *judged.messages(),
        judged.bill(),
        judged.tidiness(),
    )
    return Card(
        drill=facts.drill,
        outage=outage.name,
        is_early=facts.is_early,
        lines=lines,
        figures=judged.figures,
        lost=tuple(probe.message_id for probe in judged.lost[:NAMED_MAX]),
    )


class _Judge:
    def __init__(self, facts: Facts, options: DrillOptions, outage: Outage) -> None:
        self._facts = facts
        self._options = options
        self._outage = outage
        self._slack = milliseconds(options.slack)
        self._read = frozenset(course.entity for course in facts.courses if course.is_read)
        self._accepted = [probe for probe in facts.probes if probe.accepted_ms is not None]
        self._parked = [probe for probe in self._accepted if probe.is_parked]
        self.lost = [
            probe
            for probe in self._accepted
            if probe.entity in self._read and not probe.copies and not probe.waits_in
        ]
        self.figures: dict[str, object] = {
            "probes": len(facts.probes),
            "accepted": len(self._accepted),
            "outage_seconds": _seconds(facts.ended_ms - facts.begun_ms),
        }

    # --- failover -----------------------------------------------------------------------------------

    def reaction(self) -> list[Line]:
        """Noticed, and failed over at the interval."""
        if not self._outage.fails_over:
            failovers = sum(course.failovers for course in self._facts.courses)
            promise = f"{self._outage.name} sends nobody into the backlog"
            return [_line("no failover", promise, failovers == 0, f"{failovers} failovers")]
        if self._outage.name == MANUAL:
            return [
                Line("noticed", "the outage is noticed", "not tested", "switched by hand"),
                Line("failover", "sends go to the backlog", *self._all_failed_over()),
            ]
        return [self._noticed(), self._failover()]

    def _noticed(self) -> Line:
        timeout = milliseconds(self._options.send_timeout) if self._outage.is_silent else 0
        bound = timeout + round(1_000 / self._options.rate) + PACE_MS + self._slack
        times = [course.suspect_ms for course in self._facts.courses]
        worst = _worst([None if at is None else at - self._facts.begun_ms for at in times])
        self.figures["noticed_seconds"] = _seconds(worst)
        verdict = self._timed(worst, bound)
        return Line("noticed", "the outage is noticed", verdict, _against(worst, bound))

    def _failover(self) -> Line:
        interval = milliseconds(self._options.failover_interval)
        waits = [
            None
            if course.suspect_ms is None or course.failed_over_ms is None
            else course.failed_over_ms - course.suspect_ms
            for course in self._facts.courses
        ]
        worst = _worst(waits)
        self.figures["failover_seconds"] = _seconds(worst)
        whole = _worst(
            [_since(course.failed_over_ms, self._facts.begun_ms) for course in self._facts.courses]
        )
        self.figures["outage_to_failover_seconds"] = _seconds(whole)
        verdict = self._timed(worst, interval + self._slack)
        figure = (
            f"{_shown(worst)} after the first failure, interval {_shown(interval)}; {_shown(whole)} after the outage began"
            if worst is not None
            else "it did not happen"
        )
        return Line("failover", "sends go to the backlog after the failover interval", verdict, figure)

    def _all_failed_over(self) -> tuple[Verdict, str]:
        count = sum(course.failed_over_ms is not None for course in self._facts.courses)
        verdict: Verdict = "pass" if count == len(self._facts.courses) else "fail"
        return verdict, f"{count} of {len(self._facts.courses)} entities"

    def _timed(self, worst: int | None, bound: int) -> Verdict:
        if worst is None and self._facts.is_early:
            return "not tested"
        return "pass" if worst is not None and worst <= bound else "fail"

    # --- those who send -----------------------------------------------------------------------------

    def callers(self) -> list[Line]:
        """Refused sends, before and after failover, and the longest that a caller waited."""
        after = [one for one in self._facts.refusals if one.state is Health.FAILED_OVER]
        before = len(self._facts.refusals) - len(after)
        self.figures |= {"refused_before_failover": before, "refused_while_failed_over": len(after)}
        lines = []
        if self._outage.fails_over:
            last = f"; the last: {after[-1].text}" if after else ""
            lines.append(
                _line(
                    "go on", "no send is refused once failed over", not after, f"{len(after)} refused{last}"
                )
            )
        lines.append(self._refused_before(before))
        longest = max((probe.longest_ms for probe in self._facts.probes), default=0)
        bound = milliseconds(self._options.send_timeout)
        self.figures["longest_wait_seconds"] = _seconds(longest)
        lines.append(
            _line(
                "longest wait",
                "no caller waits beyond its timeout",
                longest <= bound + self._slack,
                f"{_shown(longest)}, timeout {_shown(bound)}",
            )
        )
        return lines

    def _refused_before(self, count: int) -> Line:
        holds = (
            self._options.while_suspect == "wait" and self._outage.fails_over and not self._outage.is_silent
        )
        if holds and self._options.send_timeout > self._options.failover_interval:
            return _line(
                "held", "sends wait for the failover, none is refused", count == 0, f"{count} refused"
            )
        why = (
            "throttled callers wait and may get an error"
            if not self._outage.fails_over
            else "a silent primary spends the first send's timeout"
            if self._outage.is_silent
            else "errors reach callers until the failover, as asked for"
        )
        return Line("refused", "sends refused before the failover", "told", f"{count} ({why})")

    # --- the way back -------------------------------------------------------------------------------

    def way_back(self) -> list[Line]:
        """Pings, failback, drain."""
        if not self._outage.fails_over:
            return []
        return [self._pings(), self._failback(), self._drain()]

    def _pings(self) -> Line:
        interval = milliseconds(self._options.ping_interval_of(self._outage))
        most = 0
        allowed = 0
        for course in self._facts.courses:
            if course.failed_over_ms is not None:
                until = course.recovered_ms if course.recovered_ms is not None else self._facts.ended_ms
                allowed += max(0, until - course.failed_over_ms) // interval + 2
            most += course.pings
        self.figures["pings"] = most
        verdict: Verdict = (
            "pass" if 0 < most <= allowed else "not tested" if self._facts.is_early and not most else "fail"
        )
        return Line(
            "pings", "one ping per interval and entity", verdict, f"{most} pings, one per {_shown(interval)}"
        )

    def _failback(self) -> Line:
        interval = milliseconds(self._options.ping_interval_of(self._outage))
        beyond = 0 if self._outage.name == MANUAL else interval
        bound = beyond + PING_TIMEOUT_MS_LONG + self._slack
        waits = [
            None
            if course.failed_over_ms is None or course.recovered_ms is None
            else max(0, course.recovered_ms - self._facts.ended_ms)
            for course in self._facts.courses
        ]
        worst = _worst(waits)
        self.figures["failback_seconds"] = _seconds(worst)
        verdict: Verdict = "pass" if worst is not None and worst <= bound else "fail"
        if self._facts.is_early and all(course.failed_over_ms is None for course in self._facts.courses):
            verdict = "not tested"
        figure = _against(worst, bound) + ("" if worst is None else " after the outage")
        return Line("failback", "sends go to the primary again", verdict, figure)

    def _drain(self) -> Line:
        bound = milliseconds(self._options.drain_within)
        backs = [course.recovered_ms for course in self._facts.courses if course.recovered_ms is not None]
        arrivals = [probe.arrived_ms for probe in self._parked if probe.arrived_ms is not None]
        left = sum(bool(probe.waits_in) and not probe.is_dead_lettered for probe in self._facts.probes)
        # Of entities whose consumers are not ours, what the backlog has no more is home.
        unread = [probe for probe in self._parked if probe.entity not in self._read]
        home = len(arrivals) + sum(not probe.waits_in for probe in unread)
        took = max(0, max(arrivals) - max(backs)) if arrivals and backs else 0
        self.figures |= {"parked": len(self._parked), "home": home, "drain_seconds": _seconds(took)}
        if not self._parked:
            return Line("drain", "what was parked comes home", "not tested", "nothing was parked")
        passed = home == len(self._parked) and not left and took <= bound
        text = f"{home} of {len(self._parked)} home, {_shown(took)} after the failback"
        if left:
            text += (
                f"; {left} still in the backlog: does a syphon run? `pairbus syphon --once` brings them home"
            )
            new = {probe.waits_in for probe in self._facts.probes} & {*self._facts.queues_created}
            if new and not self._options.brings_home:
                text += (
                    f"; {_queues(sorted(new))} did not exist before the drill, and a syphon for fewer queues does not serve "
                    "them: give the drill the --queues of the pair"
                )
        return _line("drain", "what was parked comes home", passed, text)

    # --- what arrived -------------------------------------------------------------------------------

    def messages(self) -> list[Line]:
        """Lost, repeated, dead-lettered."""
        aside = sum(probe.is_dead_lettered for probe in self._facts.probes)
        self.figures["set_aside"] = aside
        return [*self._arrivals(), _line("dead-lettered", "nothing is dead-lettered", aside == 0, str(aside))]

    def _arrivals(self) -> list[Line]:
        seen = [probe for probe in self._facts.probes if probe.entity in self._read]
        unread = len(self._facts.probes) - len(seen)
        accepted = sum(probe.accepted_ms is not None for probe in seen)
        copies = sum(max(0, len(probe.copies) - 1) for probe in seen)
        allowed = sum(probe.doubts for probe in seen) + self._facts.repeats_allowed
        self.figures |= {"lost": len(self.lost), "duplicates": copies, "duplicates_allowed": allowed}
        lines = []
        if self._read:
            waiting = sum(bool(probe.waits_in) and not probe.copies for probe in seen)
            text = f"{len(self.lost)} lost of {accepted} accepted" + (
                f", {waiting} in the backlog" if waiting else ""
            )
            verdict: Verdict = "pass" if accepted and not self.lost else "fail"
            if not accepted and self._facts.is_early:
                verdict = "not tested"
            lines.append(Line("lost", "nothing accepted is lost", verdict, text))
            lines.append(self._copies(seen, copies, allowed))
        if unread:
            text = f"{unread} probes went to consumers of their own; `pairbus reconcile` can prove it"
            lines.append(Line("arrivals", "consumers got each probe", "not tested", text))
        return lines

    def _copies(self, seen: list[SentMessage], copies: int, allowed: int) -> Line:
        """Each copy beyond the first needs a send in doubt that explains it. Those of other syphons are not known here."""
        promise = "no copies but of sends in doubt (P36)"
        beyond = [probe for probe in seen if len(probe.copies) - 1 > probe.doubts]
        extra = sum(len(probe.copies) - 1 - probe.doubts for probe in beyond)
        figure = f"{copies}, at most {allowed} allowed"
        if extra <= self._facts.repeats_allowed:
            return Line("duplicates", promise, "pass", figure)
        if self._outage.leaves_doubt and all(probe.is_parked for probe in beyond):
            return Line(
                "duplicates",
                promise,
                "told",
                f"{figure} by this drill; another syphon re-sent the rest in doubt",
            )
        return Line("duplicates", promise, "fail", figure)

    # --- the end ------------------------------------------------------------------------------------

    def bill(self) -> Line:
        facts = self._facts
        self.figures |= {"operations": facts.operations, "cost": facts.cost, "currency": facts.currency}
        return Line(
            "cost", "operations of the drill", "told", f"{facts.operations:,}, {facts.cost} {facts.currency}"
        )

    def tidiness(self) -> Line:
        """What is left behind."""
        left = self._facts.left_behind
        self.figures["left_behind"] = list(left)
        created = self._facts.queues_created
        self.figures["queues_created"] = list(created)
        if created:
            way_out = "`pairbus entity delete` removes those that no client uses"
            left += (f"{_queues(created)}, which the drill created in the secondary: {way_out}",)
        if created and not self._facts.left_behind:
            return Line("tidy", "nothing is left behind", "told", f"only {left[0]}")
        return _line("tidy", "nothing is left behind", not left, "; ".join(left) or "nothing")


def _queues(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"the backlog queue {names[0]}"
    return f"{len(names)} backlog queues ({names[0]} … {names[-1]})"


def _line(name: str, promise: str, passed: bool, figure: str) -> Line:
    return Line(name, promise, "pass" if passed else "fail", figure)


def _since(at: int | None, begun: int) -> int | None:
    return None if at is None else at - begun


def _worst(times: list[int | None]) -> int | None:
    """The longest; None as soon as one is missing."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else round(time_ms / 1000, 3)


def _shown(time_ms: int | None) -> str:
    return "never" if time_ms is None else f"{time_ms / 1000:.1f} s"


def _against(time_ms: int | None, bound_ms: int) -> str:
    return "it did not happen" if time_ms is None else f"{_shown(time_ms)}, at most {_shown(bound_ms)}"
