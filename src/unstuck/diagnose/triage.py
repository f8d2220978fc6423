"""The whole triage: watch a training for a while, try the remedies of what is found, and if that does not settle it,
run experiments on the loop until one does or the time is over."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from unstuck.diagnose.prove import LONG_ENOUGH, Remedied, judged, prove, try_remedy, worth_trying
from unstuck.experiments import ExperimentKind, all_experiments, find_experiment, findings_in
from unstuck.findings import Confidence, Diagnosis, Finding, Severity, merge, rank
from unstuck.findings.investigation import Investigation, Reason, Skipped
from unstuck.findings.result import Result
from unstuck.findings.results import Experiment, ExperimentVerdict, Isolation, Proof, ProofVerdict, Status
from unstuck.findings.verdict import Verdict
from unstuck.interventions import Intervention
from unstuck.interventions.edit_source import EditSource
from unstuck.interventions.stop_after import StopAfter
from unstuck.record import RecordError
from unstuck.record.outcome import Achieved
from unstuck.result import result_of
from unstuck.rule import all_rules, find_rule
from unstuck.trials.context import Context, NoTime
from unstuck.trials.interrupts import deferring_interrupts, has_arrived, only_note_interrupts
from unstuck.trials.pairs import MOST_SEEDS, SEEDS
from unstuck.trials.runner import Interrupted, Outcome, Variant

WATCHED, ENOUGH, WATCHED_SHARE = 10_000, 200, 0.15
"""Steps that are watched first: so many, or this many once this share of the budget has passed. A run that is watched
to its end shows more: a second training, an evaluation, what changes late."""
SLOWLY = ((20, 0.3), (2, 0.5))
"""Of a slow script so many steps are enough, once this share of the budget has passed."""
PROVEN = 300
"""Steps that a proof takes, if there is time."""
FIRST_PROOFS = 4
"""Remedies that are tried before the experiments; the others after them."""
GOING_WELL_SECONDS = 70.0
"""What is spent on ruling things out in a run that has nothing wrong with it."""
SHOWN_SHARE = 0.3
"""Of the time that is left, what the remedy of something that an experiment has shown may take."""
LONGER = 4
"""Times the steps, when a proof or an experiment is repeated."""
CLEARLY_LONGER = 1.5
"""Fewer than so many times the steps would show the same again."""


def experiments_in_order() -> list[ExperimentKind]:
    """Those of a diagnosis: the quick ones first."""
    return sorted((kind for kind in all_experiments() if kind.in_diagnosis), key=lambda kind: kind.takes_several_runs)


class Triage:
    """The state of one investigation. What is investigated, a script or live objects, is for subclasses to say."""

    answers_when_interrupted = False

    def __init__(self, context: Context, folder: Path, *, only_proofs: bool = False) -> None:
        self._only_proofs = only_proofs
        self._context = context
        self._folder = folder
        self._proofs: list[Proof] = []
        self._confirmed: list[tuple[Proof, tuple[Intervention, ...]]] = []
        """With what was changed."""
        self._experiments: list[Experiment] = []
        self._findings: list[Finding] = []
        self._skipped: list[Skipped] = []
        self._shown: list[Finding] = []
        """By experiments."""
        self._symptoms: set[str] = set()
        """Codes among these that follow from whatever else is found."""
        self._well = False
        self._spare = math.inf
        """Seconds that experiments may take."""
        self._left_over: tuple[str, ...] = ()
        self._together: Proof | None = None

    def answer(self) -> Investigation:
        """Investigate. An interrupt ends it with what is known by then, once something is."""
        interrupted = False
        try:
            outcome = self.watched()
        except Interrupted as end:
            if not self.answers_when_interrupted or not end.outcomes:
                raise
            outcome, interrupted = end.outcomes[0], True
        with deferring_interrupts():
            result = self._judged(outcome, interrupted)
        interrupted = interrupted or has_arrived()
        if interrupted and not (result.run and result.run.steps):
            raise KeyboardInterrupt
        if not interrupted:
            self.accept(outcome, result.verdict)
            interrupted = not self._investigate_to_the_end(outcome, result.verdict)
        only_note_interrupts()
        return self._investigation(outcome, result, interrupted)

    def _judged(self, outcome: Outcome, interrupted: bool) -> Result:
        """The watched run."""
        try:
            record = outcome.record()
        except RecordError:
            raise KeyboardInterrupt if interrupted else self.without_record(outcome) from None
        result = result_of(record, outcome.folder, "prove" if self._only_proofs else "diagnose")
        if interrupted and result.run is not None:
            result = msgspec.structs.replace(
                result, run=msgspec.structs.replace(result.run, status=Status.INTERRUPTED, reason="")
            )
        return result

    def _investigate_to_the_end(self, outcome: Outcome, verdict: Verdict) -> bool:
        """False: it was interrupted."""
        try:
            self._investigate(outcome, verdict)
        except KeyboardInterrupt:
            if not self.answers_when_interrupted:
                raise
            return False
        return True

    def _investigation(self, outcome: Outcome, result: Result, interrupted: bool) -> Investigation:
        verdict = self._final(result.verdict)
        return Investigation(
            result=msgspec.structs.replace(result, verdict=verdict),
            experiments=tuple(self._experiments),
            proofs=tuple(self._proofs),
            together=self._together,
            left_over=self._left_over,
            ruled_out=tuple(self._ruled_out(verdict)),
            skipped=tuple(self._skipped),
            protected=self.protected(outcome),
            isolation=self.isolation,
            ended_badly=outcome.failure,
            next_command=self.next_command(verdict),
            again=self.again,
            seconds=self._context.seconds,
            budget=self._context.budget,
            folder=self._folder,
            ended=Reason.INTERRUPTED if interrupted else self._reason(),
        )

    def _reason(self) -> Reason:
        """Why nothing more was tried."""
        if self._confirmed:
            return Reason.PROVEN
        if any(skipped.why is Reason.BUDGET for skipped in self._skipped):
            return Reason.BUDGET
        if any(skipped.why is Reason.ANSWERED for skipped in self._skipped):
            return Reason.ANSWERED
        return Reason.GOING_WELL if self._well else Reason.NOTHING_LEFT

    def _investigate(self, outcome: Outcome, verdict: Verdict) -> None:
        if not (outcome.curve.losses or outcome.status is Status.CRASHED):
            return
        self.prepare(outcome)
        trains = len(outcome.curve.losses) > 1 and outcome.status is not Status.CRASHED
        first, later = self._proofs_to_try(verdict)
        tasks = [*first]
        if trains and not self._only_proofs:
            self._well = verdict.learns and verdict.principal is None
            self._spare = GOING_WELL_SECONDS if self._well else math.inf
            tasks += [Task(kind.name, partial(self._experiment, kind, verdict)) for kind in experiments_in_order()]
        self._skipped += work([*tasks, Task("longer runs", partial(self._try_longer, verdict)), *later])
        if len(self._confirmed) > 1:
            self._prove_together(verdict)
        self._look_again(self._final(verdict))

    def watched(self) -> Outcome:
        """The first run, as it is, under watch."""
        context = self._context
        context.tell("watching it as it is")
        until = StopAfter(WATCHED, ENOUGH, WATCHED_SHARE * context.budget)
        slowly = tuple(StopAfter(WATCHED, steps, share * context.budget) for steps, share in SLOWLY)
        return context.run([Variant("watched", (until, *slowly), show_data=True)], WATCHED)[0]

    def prepare(self, outcome: Outcome) -> None:
        """Whatever makes the next runs start sooner."""

    def accept(self, outcome: Outcome, verdict: Verdict) -> None:
        """Raise if there is nothing to investigate."""

    def without_record(self, outcome: Outcome) -> Exception:
        """What to raise if the watched run left none."""
        return RecordError("the run left no record")

    @property
    def isolation(self) -> Isolation | None:
        """What prevented trials from writing to the user's files, where they were processes of their own."""
        return None

    def protected(self, outcome: Outcome) -> str:
        """What was done so that the user's files and objects did not change."""
        raise NotImplementedError

    @property
    def again(self) -> str | None:
        """What to type to investigate the same again."""
        return None

    def next_command(self, verdict: Verdict) -> str:
        """What to do next."""
        raise NotImplementedError

    def _proofs_to_try(self, verdict: Verdict) -> tuple[list[Task], list[Task]]:
        """What was found, causes before symptoms; the first few, and those that can wait until after the experiments.

        Once a remedy works, only those of other causes are tried.
        """
        symptoms = {code for diagnosis in verdict.diagnoses for code in diagnosis.explains}
        found = [d for d in verdict.diagnoses if worth_trying(d)]
        causes = [d for d in found if d.lead.code not in symptoms]
        rest = [d for d in found if d.lead.code in symptoms]
        unseen = [d for d in verdict.unconfirmed if worth_trying(d)]
        tasks = []
        candidates = each_code_first([*causes, *rest, *unseen])
        for index, diagnosis in enumerate(candidates):
            # As much time for each of the first, and as much for the experiments.
            parts = max(1, min(FIRST_PROOFS, len(candidates)) - index + (not self._only_proofs))
            one = partial(self._prove, diagnosis, 1 / parts, diagnosis in causes and index < FIRST_PROOFS)
            tasks.append(Task(diagnosis.lead.code, one))
        return tasks[:FIRST_PROOFS], tasks[FIRST_PROOFS:]

    def _prove(self, diagnosis: Diagnosis, share: float, although_settled: bool) -> Reason | None:
        reason = self._settled_by(self._shown_causes)
        if reason is not None and not although_settled:
            return reason
        steps = self._context.steps_for(2 * SEEDS, share, PROVEN, least_runs=2)
        self._keep(prove(self._context, diagnosis, steps))
        return None

    def _keep(self, tried: tuple[Proof, Remedied] | None) -> None:
        """What a proof has shown, in place of what was shown about the same matter before."""
        if tried is None:
            return
        proof, remedied = tried
        self._context.learned(f"fix of {proof.code} ({proof.remedy}): {proof.verdict}: {proof.sentence}")
        self._proofs = [one for one in self._proofs if (one.code, one.about) != (proof.code, proof.about)]
        self._proofs.append(proof)
        if proof.verdict is ProofVerdict.CONFIRMED:
            self._confirmed.append((proof, remedied.changes))

    def _try_longer(self, verdict: Verdict) -> Reason | None:
        """What runs did not decide, longer ones may, or more of them."""
        known = (*verdict.diagnoses, *verdict.unconfirmed, *merge([*self._findings, *self._shown]))
        for proof in list(self._proofs):
            diagnosis = next((d for d in known if proof.is_about(d)), None)
            how = longer_proof(self._context, proof)
            if diagnosis is not None and how is not None and not self._settled_by(self._shown_causes):
                self._keep(prove(self._context, diagnosis, *how))
        for done in list(self._experiments):
            wanted = longer_experiment(self._context, done)
            kind = find_experiment(done.name)
            if kind and wanted is not None and not self._well and not self._settled_by(self._shown):
                again = kind(self._context, wanted=wanted)
                self._experiments.remove(done)
                self._take_in(kind, again, verdict)
        return None

    def _prove_together(self, verdict: Verdict) -> None:
        """All confirmed remedies at once, to show what they do together."""
        proofs = [proof for proof, _ in self._confirmed]
        changes = tuple(dict.fromkeys(change for _, changed in self._confirmed for change in changed))
        known = (*verdict.diagnoses, *verdict.unconfirmed, *merge([*self._findings, *self._shown]))
        diagnosis = next((d for d in known if proofs[0].is_about(d)), None)
        if diagnosis is None:
            return
        steps = min(proof.steps for proof in proofs)
        needed = self._context.needed(2, steps)
        if needed > self._context.left:
            self._skipped.append(Skipped("all remedies together", Reason.BUDGET, needed, self._context.left))
        elif compatible(changes):
            names = " and ".join(self._named(proof) for proof in proofs)
            counted = any((rule := find_rule(proof.code)) and rule.changes_loss for proof in proofs)
            proof = try_remedy(self._context, Remedied(diagnosis, changes, f"the remedies of {names}", counted), steps)
            self._together = msgspec.structs.replace(proof, code=names)

    def _named(self, proof: Proof) -> str:
        """Its code, and its place where another proof is of the same code."""
        is_only = sum(other.code == proof.code for other in self._proofs) == 1
        return proof.code if is_only or proof.place is None else f"{proof.code} at {proof.place}"

    def _settled_by(self, shown: Sequence[Finding]) -> Reason | None:
        """Is more not needed, because of a proof or of what experiments have shown?"""
        if self._confirmed:
            return Reason.PROVEN
        return Reason.ANSWERED if any(finding.severity is Severity.ERROR for finding in shown) else None

    def _explained(self, verdict: Verdict, kind: ExperimentKind) -> Reason | None:
        """Is a part of the program not to be cornered, since the run is not in trouble, or a cause is known?

        A finding that nothing is learned, from one batch or from the inputs, does not count as a cause.
        """
        if self._confirmed:
            return Reason.PROVEN
        final = self._final(verdict)
        symptoms = self._symptoms | {
            finding.code
            for done in self._experiments
            if done.verdict in (ExperimentVerdict.FAILED, ExperimentVerdict.IGNORES)
            for finding in findings_in(done)
        }
        causes = [d for d in final.diagnoses if d.severity is Severity.ERROR and d.lead.code not in symptoms]
        if any(not d.is_hygiene and self._tried(d) not in (ProofVerdict.NO_EFFECT, ProofVerdict.WORSE) for d in causes):
            return Reason.ANSWERED
        memorizes = kind.if_memorizing and any(one.word is Achieved.MEMORIZES for one in final.outcomes)
        return None if final.in_trouble or memorizes else Reason.GOING_WELL

    @property
    def _falls_when_fixed(self) -> bool:
        """Does a confirmed remedy bring the loss below where it began? If not, it fixes a symptom."""
        return any(
            pair.remedied.end is not None and pair.remedied.finite and pair.remedied.end < pair.remedied.finite[0]
            for proof, _ in self._confirmed
            for pair in proof.pairs
        )

    @property
    def _shown_causes(self) -> list[Finding]:
        return [finding for finding in self._shown if finding.code not in self._symptoms]

    def _experiment(self, kind: ExperimentKind, verdict: Verdict) -> Reason | None:
        """Run one experiment, unless an earlier one has failed. A run that goes well needs fewer of them."""
        reason = self._settled_by(self._shown)
        goes_on = kind.tries_remedies and reason is Reason.PROVEN and not self._falls_when_fixed
        if kind.if_explained and reason and not goes_on:
            return reason
        if self._well and not kind.if_going_well:
            return Reason.GOING_WELL
        if not kind.if_explained and (reason := self._explained(verdict, kind)):
            return reason
        began = self._context.seconds
        try:
            with self._context.allotted(self._spare):
                self._take_in(kind, kind(self._context), verdict)
        except NoTime as error:
            if error.is_of_budget:
                raise
            return Reason.GOING_WELL
        finally:
            self._spare -= self._context.seconds - began if self._well else 0.0
        if kind.tries_remedies and self._experiments and self._experiments[-1].name == kind.name:
            self._try_shown(merge(self._counted(kind, self._experiments[-1])))
        return None

    def _take_in(self, kind: ExperimentKind, done: Experiment, verdict: Verdict) -> None:
        if kind.applies(done):
            self._experiments.append(done)
            self._context.learned(f"{done.name}: {done.verdict}: {done.sentence}")
        found = self._counted(kind, done)
        change = kind.remedy(done) if kind.remedy is not None else None
        if found and done.pairs and change is not None:
            # The experiment has made the pairs of runs that prove what it found.
            remedied = Remedied(merge(found)[0], (change,), change.words)
            self._keep((judged(remedied, done.pairs, max(len(pair.without.losses) for pair in done.pairs)), remedied))
            self._findings += found
            return
        self._shown += found
        if kind.shows_symptoms:
            self._symptoms |= {finding.code for finding in found}

    def _counted(self, kind: ExperimentKind, done: Experiment) -> list[Finding]:
        """What it found; in a run that goes well, only what cannot be meant."""
        found = list(findings_in(done))
        if self._well and kind.only_certain_if_going_well:
            found = [one for one in found if one.severity is Severity.ERROR and one.confidence is Confidence.CERTAIN]
        return found

    def _try_shown(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Try the remedies of what an experiment has shown."""
        for diagnosis in filter(worth_trying, diagnoses):
            try:
                self._prove(diagnosis, SHOWN_SHARE, True)
            except NoTime as error:
                self._skipped.append(Skipped(diagnosis.lead.code, Reason.BUDGET, error.needed, error.left))

    def _final(self, verdict: Verdict) -> Verdict:
        """Everything that was found, by witnesses and experiments, in the order in which to fix it."""
        verdict = self._measured(verdict)
        promoted = [d for d in verdict.unconfirmed if self._tried(d) is ProofVerdict.CONFIRMED]
        is_stuck = not verdict.learns
        found = [
            proven(finding, is_stuck) if self._tried(diagnosis) is ProofVerdict.CONFIRMED else finding
            for diagnosis in (*verdict.diagnoses, *promoted, *merge([*self._findings, *self._shown]))
            for finding in diagnosis.findings
        ]
        causes = {rule.code: frozenset(rule.explains) for rule in all_rules()}
        ranked = rank(merge(found), causes)
        untried = {
            code
            for d in ranked
            if d.severity is Severity.ERROR and not self._tried(d) and d.lead.code not in self._symptoms
            for code in d.explains
        }
        ordered = sorted(ranked, key=lambda d: order_of(d, self._tried(d), untried, d.lead.code in self._symptoms))
        rest = [d for d in verdict.unconfirmed if d not in promoted]
        final = msgspec.structs.replace(verdict, diagnoses=tuple(ordered), unconfirmed=tuple(rest))
        return self._with_suspicions(final) if verdict.in_trouble and final.principal is None else final

    def _measured(self, verdict: Verdict) -> Verdict:
        """A loss that falls as far without its inputs does not beat a guess, whatever it looked like from outside. A
        training that answers new examples as well as known ones does not memorize."""
        shown = {done.verdict for done in self._experiments}
        if len(verdict.outcomes) != 1:
            return verdict
        (outcome,) = verdict.outcomes
        word = outcome.word
        if ExperimentVerdict.IGNORES in shown and not word.is_trouble:
            word = Achieved.GUESSES
        elif ExperimentVerdict.APART in shown and word is Achieved.MEMORIZES:
            word = Achieved.LEARNS
        return msgspec.structs.replace(verdict, outcomes=(msgspec.structs.replace(outcome, word=word),))

    def _with_suspicions(self, verdict: Verdict) -> Verdict:
        """What only the text shows, where nothing else explains a run in trouble: the run need not have shown it."""
        suspicious = [
            d
            for d in verdict.unconfirmed
            if d.severity is not Severity.ADVICE
            and not d.is_hygiene
            and self._tried(d) not in (ProofVerdict.NO_EFFECT, ProofVerdict.WORSE)
        ]
        quieter = [quieted(d) for d in suspicious]
        return msgspec.structs.replace(
            verdict,
            diagnoses=(*quieter, *verdict.diagnoses),
            unconfirmed=tuple(d for d in verdict.unconfirmed if d not in suspicious),
        )

    def _tried(self, diagnosis: Diagnosis) -> ProofVerdict | None:
        """What became of its remedy; None if it was not tried."""
        return next((proof.verdict for proof in self._proofs if proof.is_about(diagnosis)), None)

    def _look_again(self, verdict: Verdict) -> None:
        """What is still found in the run with the remedy of the answer?"""
        first = verdict.diagnoses[0] if verdict.diagnoses else None
        confirmed = next((both for both in self._confirmed if first and both[0].is_about(first)), None)
        if first is None or confirmed is None:
            return
        proof, changes = confirmed
        variant = Variant(f"with-{proof.code}-seed0", changes)
        outcome = self._context.run([variant], proof.steps, seed=0)[0]
        from unstuck.judge import judge

        left = judge(record=outcome.record()).diagnoses
        # With an edit in place its line may be another.
        own = {(proof.code, matter.subject) for matter in proof.about}
        loud = [d.lead for d in left if d.severity is not Severity.ADVICE and (d.lead.code, d.lead.subject) not in own]
        self._left_over = tuple(f"{lead.code} {lead.name}" for lead in loud)

    def _ruled_out(self, verdict: Verdict) -> Iterable[str]:
        for proof in self._proofs:
            if proof.verdict in (ProofVerdict.NO_EFFECT, ProofVerdict.WORSE):
                yield f"{self._named(proof)}: its remedy ({proof.remedy}) was tried and does not help: {proof.sentence}"
        for done in self._experiments:
            if done.verdict.is_good:
                yield f"{done.name}: {done.sentence}"


class Task(msgspec.Struct, frozen=True, eq=False):
    """Something to try."""

    what: str
    """As `Skipped.what`."""
    perform: Callable[[], Reason | None]
    """Try it; why it is not needed, if it is not. Raises `NoTime` if it does not fit into what is left."""


def work(tasks: Iterable[Task]) -> list[Skipped]:
    """Perform what there is time for, in this order, and give back what was not tried.

    What did not fit is looked at again after the others: they may have shown that runs start sooner than was thought.
    """
    skipped: list[Skipped] = []
    waiting = list(tasks)
    late: dict[Task, NoTime] = {}
    while waiting:
        late = {}
        for task in waiting:
            try:
                reason = task.perform()
            except NoTime as error:
                late[task] = error
            else:
                skipped += [Skipped(task.what, reason)] if reason else []
        if len(late) == len(waiting):
            break
        waiting = list(late)
    return [*skipped, *(Skipped(task.what, Reason.BUDGET, why.needed, why.left) for task, why in late.items())]


def longer_proof(context: Context, proof: Proof) -> tuple[int, int] | None:
    """With how many steps and seeds to repeat a proof; None if it is decided, or there is no time."""
    if proof.verdict is not ProofVerdict.UNDECIDED:
        return None
    wanted = max(LONG_ENOUGH, LONGER * proof.steps)
    steps = context.plan(2 * SEEDS, wanted=wanted) or context.plan(2, wanted=wanted)
    if steps >= CLEARLY_LONGER * proof.steps:
        return steps, SEEDS
    if len(proof.pairs) < MOST_SEEDS and context.plan(2 * MOST_SEEDS, wanted=proof.steps) >= proof.steps:
        return proof.steps, MOST_SEEDS
    return None


def longer_experiment(context: Context, done: Experiment) -> int | None:
    """With how many steps to repeat an experiment; None if more of them would not decide it, or there is no time."""
    kind = find_experiment(done.name)
    runs = kind.runs_if_longer if kind is not None else 0
    needs_steps = done.verdict is ExperimentVerdict.UNDECIDED and done.measures.get("slow", True)
    wanted = LONGER * int(done.measures.get("steps") or 0)
    if not runs or not needs_steps or not wanted:
        return None
    return wanted if context.plan(runs, wanted=wanted) >= wanted else None


def each_code_first(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The first of each code, then the others: there may not be time for all."""
    first = {diagnosis.lead.code: diagnosis for diagnosis in reversed(diagnoses)}
    return [*(d for d in diagnoses if first[d.lead.code] is d), *(d for d in diagnoses if first[d.lead.code] is not d)]


def proven(finding: Finding, is_stuck: bool) -> Finding:
    """What an experiment has shown is certain; but it is not an error if the run learns in spite of it."""
    if finding.severity is Severity.ADVICE:
        return finding
    severity = Severity.ERROR if is_stuck else finding.severity
    return msgspec.structs.replace(finding, severity=severity, confidence=Confidence.CERTAIN)


def quieted(diagnosis: Diagnosis) -> Diagnosis:
    """The same as a likely warning: only the text shows it."""
    lead = msgspec.structs.replace(diagnosis.lead, severity=Severity.WARNING, confidence=Confidence.LIKELY)
    return msgspec.structs.replace(diagnosis, lead=lead, findings=(lead, *diagnosis.findings[1:]))


def order_of(diagnosis: Diagnosis, verdict: ProofVerdict | None, explained: set[str], is_symptom: bool) -> int:
    """What was confirmed goes first, what was tried without effect last. What a cause that could not be tried explains
    does not go before that cause: its remedy may only cover it up."""
    if diagnosis.severity is Severity.ADVICE or diagnosis.is_hygiene:
        return 4
    if is_symptom:
        return 2
    if verdict is ProofVerdict.CONFIRMED and diagnosis.lead.code in explained:
        return 1
    if verdict in (ProofVerdict.NO_EFFECT, ProofVerdict.WORSE):
        return 3
    return 0 if verdict is ProofVerdict.CONFIRMED else 1


def compatible(changes: Sequence[Intervention]) -> bool:
    """Do the edits among them touch different lines?"""
    spans = sorted(
        (edit.path, edit.line, edit.end_line) for c in changes if isinstance(c, EditSource) for edit in c.edits
    )
    return all(a[0] != b[0] or a[2] < b[1] for a, b in itertools.pairwise(spans))
