"""The whole triage: watch a training for a while, try the remedies of what is found, and if that does not settle it,
experiment on the loop until it does or the time is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from unstuck.experiments.context import Context
from unstuck.experiments.investigation import Investigation
from unstuck.experiments.judging import GOOD, experiment_named, findings_in
from unstuck.experiments.prove import prove, try_remedy
from unstuck.experiments.remedies import Remedied, worth_trying
from unstuck.experiments.result import Experiment, Proof
from unstuck.experiments.runner import Outcome, Variant
from unstuck.findings import Confidence, Diagnosis, Finding, Severity, merge, rank
from unstuck.interventions import Intervention, StopAfter
from unstuck.judge import Verdict
from unstuck.live.outcome import result_of
from unstuck.rule import all_rules, find_rule

WATCHED, ENOUGH, WATCHED_SECONDS = 2000, 200, 12.0
"""Steps that are watched first: so many, or this many once so many seconds have passed. A run that is seen to its end
tells more."""
PROVEN = 300
"""Steps that a proof takes, if there is time."""
MOST_PROOFS = 4
PROOF_SECONDS = 25.0
"""What the runs of one proof may take."""
QUICK_STEP, QUICK = 0.02, 55.0
"""A training whose steps take less than so many seconds is done with in so many, whatever the budget."""
FEWEST = 50
"""Steps that each run of an experiment should be able to take."""
ORDER = ("independence", "causality", "overfit", "baseline", "lr")
"""The quick ones first, then those whose failure says more."""
SYMPTOMS = ("O01",)
"""That a loop cannot learn one batch follows from whatever else is found in it."""
GOING_WELL = ("falling",)
GOING_WELL_SECONDS = 40.0
"""What is spent on ruling things out in a run that has nothing wrong with it."""


class Triage:
    """The state of one investigation. What is investigated, a script or live objects, is for subclasses to say."""

    answers_when_interrupted = False

    def __init__(self, context: Context, folder: Path, *, only_proofs: bool = False) -> None:
        self._only_proofs = only_proofs
        self._context = context
        self._asked = context.budget
        self._folder = folder
        self._proofs: list[Proof] = []
        self._confirmed: list[tuple[Proof, tuple[Intervention, ...]]] = []
        """With what was changed."""
        self._experiments: list[Experiment] = []
        self._findings: list[Finding] = []
        self._skipped: list[str] = []
        self._left_over: tuple[str, ...] = ()
        self._together: Proof | None = None

    def answer(self) -> Investigation:
        """Investigate. An interrupt ends it with what is known by then, once something is."""
        outcome = self.watched()
        result = result_of(outcome.record(), outcome.folder, "prove" if self._only_proofs else "diagnose")
        self.accept(outcome, result.verdict)
        interrupted = False
        try:
            self._investigate(outcome, result.verdict)
        except KeyboardInterrupt:
            if not self.answers_when_interrupted:
                raise
            interrupted = True
            self._skipped.append("What else there was to try was not tried: you interrupted it.")
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
            next_command=self.next_command(verdict),
            seconds=time.monotonic() - self._context.began,
            budget=self._asked,
            folder=self._folder,
            interrupted=interrupted,
        )

    def _investigate(self, outcome: Outcome, verdict: Verdict) -> None:
        if outcome.curve.losses or outcome.status == "crashed":
            self._prove(verdict)
        trains = len(outcome.curve.losses) > 1 and outcome.status != "crashed"
        if trains and not self._is_settled() and not self._only_proofs:
            self._experiment(verdict)
        self._look_again(self._final(verdict))

    def watched(self) -> Outcome:
        """The first run, as it is, under watch."""
        context = self._context
        context.tell("watching it as it is")
        until = StopAfter(WATCHED, ENOUGH, WATCHED_SECONDS)
        outcome = context.run([Variant("watched", (until,), show_data=True)], WATCHED)[0]
        if context.step_seconds is not None and context.step_seconds < QUICK_STEP:
            context.budget = min(context.budget, QUICK)
        return outcome

    def accept(self, outcome: Outcome, verdict: Verdict) -> None:
        """Raise if there is nothing to investigate."""

    def protected(self, outcome: Outcome) -> str:
        """What was done so that nothing of the user's is changed."""
        raise NotImplementedError

    def next_command(self, verdict: Verdict) -> str:
        """What to do next."""
        raise NotImplementedError

    def _prove(self, verdict: Verdict) -> None:
        """Try what was found, causes before symptoms, until one remedy works; then those that are independent of it."""
        symptoms = {code for diagnosis in verdict.diagnoses for code in diagnosis.explains}
        found = [d for d in verdict.diagnoses if worth_trying(d)]
        causes = [d for d in found if d.lead.code not in symptoms]
        rest = [d for d in found if d.lead.code in symptoms]
        unseen = [d for d in verdict.unconfirmed if worth_trying(d)]
        for diagnosis in _each_code_first([*causes, *rest, *unseen])[:MOST_PROOFS]:
            if self._is_settled() and diagnosis not in causes:
                break
            self._prove_one(diagnosis)
        if len(self._confirmed) > 1:
            self._prove_together(verdict)

    def _prove_one(self, diagnosis: Diagnosis) -> None:
        context = self._context
        steps = context.plan(6, share=min(1.0, PROOF_SECONDS / max(1.0, context.left)), wanted=PROVEN)
        if not steps:
            self._skipped.append(f"The remedy of {diagnosis.lead.code} was not tried: there was no time left for it.")
            return
        tried = prove(context, diagnosis, steps)
        if tried is not None:
            proof, remedied = tried
            self._proofs.append(proof)
            if proof.verdict == "confirmed":
                self._confirmed.append((proof, remedied.changes))

    def _prove_together(self, verdict: Verdict) -> None:
        """All confirmed remedies at once, so that what each contributes can be told."""
        proofs = [proof for proof, _ in self._confirmed]
        changes = tuple(dict.fromkeys(change for _, changed in self._confirmed for change in changed))
        known = (*verdict.diagnoses, *verdict.unconfirmed)
        diagnosis = next((d for d in known if proofs[0].is_about(d)), None)
        if diagnosis is None:
            return
        steps = min(proof.steps for proof in proofs)
        if self._context.plan(2, wanted=steps) >= steps and _compatible(changes):
            names = " and ".join(self._named(proof) for proof in proofs)
            counted = any((rule := find_rule(proof.code)) and rule.changes_loss for proof in proofs)
            proof = try_remedy(self._context, Remedied(diagnosis, changes, f"the remedies of {names}", counted), steps)
            self._together = msgspec.structs.replace(proof, code=names)

    def _named(self, proof: Proof) -> str:
        """Its code, and its place where another proof is of the same code."""
        is_only = sum(other.code == proof.code for other in self._proofs) == 1
        return proof.code if is_only or proof.place is None else f"{proof.code} at {proof.place}"

    def _is_settled(self) -> bool:
        return bool(self._confirmed)

    def _experiment(self, verdict: Verdict) -> None:
        """Does the model mix examples or see the future, is the loop able to learn at all, does it learn from its
        inputs, is its learning rate sane? Until one of them fails. Of a run that goes well the last is not asked."""
        well = verdict.trend is not None and verdict.trend.word in GOING_WELL and not verdict.reaches(Severity.WARNING)
        if well:
            self._context.budget = min(
                self._context.budget, self._context.budget - self._context.left + GOING_WELL_SECONDS
            )
        for name in ORDER[:-1] if well else ORDER:
            if self._context.plan(2, wanted=FEWEST) < min(FEWEST, self._context.available_steps or FEWEST):
                self._skipped.append(f"The experiment {name} was not made: there was no time left for it.")
                continue
            done = experiment_named(name)(self._context)
            self._experiments += [done] if _applies(done) else []
            found = findings_in(done)
            self._findings += self._tested(found, done, verdict) if name == "lr" else found
            if any(finding.severity is Severity.ERROR for finding in found) and name != "lr":
                break

    def _tested(self, found: Sequence[Finding], done: Experiment, verdict: Verdict) -> list[Finding]:
        """A learning rate outside of its band is a finding only if the run learns better with another one."""
        from unstuck.experiments.lr import remedy_factor
        from unstuck.interventions import SetRate

        factor = remedy_factor(done)
        if not found or factor is None:
            return []
        steps = self._context.plan(6, wanted=PROVEN)
        if not steps:
            return list(found)
        diagnosis = merge(found)[0]
        words = f"the learning rate times {factor:.3g}"
        proof = try_remedy(self._context, Remedied(diagnosis, (SetRate(factor),), words), steps)
        self._proofs.append(proof)
        if proof.verdict != "confirmed":
            return []
        self._confirmed.append((proof, (SetRate(factor),)))
        if verdict.trend is not None and verdict.trend.word in GOING_WELL:
            return [msgspec.structs.replace(finding, severity=Severity.ADVICE) for finding in found]
        return list(found)

    def _final(self, verdict: Verdict) -> Verdict:
        """Everything that was found, by witnesses and experiments, in the order in which to mend it."""
        promoted = [d for d in verdict.unconfirmed if self._tried(d) == "confirmed"]
        suffers = verdict.trend is None or verdict.trend.word not in GOING_WELL
        found = [
            _proven(finding, suffers) if self._tried(diagnosis) == "confirmed" else finding
            for diagnosis in (*verdict.diagnoses, *promoted, *merge(self._findings))
            for finding in diagnosis.findings
        ]
        causes = {rule.code: frozenset(rule.explains) for rule in all_rules()}
        ranked = rank(merge(found), causes)
        untried = {
            code
            for d in ranked
            if d.severity is Severity.ERROR and not self._tried(d) and d.lead.code not in SYMPTOMS
            for code in d.explains
        }
        ordered = sorted(ranked, key=lambda d: _order(d, self._tried(d), untried))
        rest = tuple(d for d in verdict.unconfirmed if d not in promoted)
        return msgspec.structs.replace(verdict, diagnoses=tuple(ordered), unconfirmed=rest)

    def _tried(self, diagnosis: Diagnosis) -> str:
        """What became of its remedy; empty if it was not tried."""
        return next((proof.verdict for proof in self._proofs if proof.is_about(diagnosis)), "")

    def _look_again(self, verdict: Verdict) -> None:
        """What is still found in the run with the remedy of the answer?"""
        first = verdict.diagnoses[0] if verdict.diagnoses else None
        mended = next((both for both in self._confirmed if first and both[0].is_about(first)), None)
        if first is None or mended is None:
            return
        proof, changes = mended
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
            if proof.verdict in ("no effect", "worse"):
                yield f"{self._named(proof)}: its remedy ({proof.remedy}) was tried and does not help: {proof.sentence}"
        for done in self._experiments:
            if done.verdict in GOOD:
                yield f"{done.name}: {done.sentence}"


def _applies(done: Experiment) -> bool:
    """Of a model that predicts nothing that comes next, causality says nothing."""
    return not (done.name == "causality" and done.verdict == "undecided" and done.probe is not None)


def _each_code_first(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The first of each code, then the others: there may not be time for all."""
    first = {diagnosis.lead.code: diagnosis for diagnosis in reversed(diagnoses)}
    return [*(d for d in diagnoses if first[d.lead.code] is d), *(d for d in diagnoses if first[d.lead.code] is not d)]


def _proven(finding: Finding, suffers: bool) -> Finding:
    """What an experiment has shown is no guess any more; yet what a run learns in spite of is no error."""
    if finding.severity is Severity.ADVICE:
        return finding
    severity = Severity.ERROR if suffers else finding.severity
    return msgspec.structs.replace(finding, severity=severity, confidence=Confidence.CERTAIN)


def _order(diagnosis: Diagnosis, verdict: str, explained: set[str]) -> int:
    """What was confirmed goes first, what was tried in vain last. A symptom does not overtake a cause that could not be
    tried: what mends the one may only cover up the other."""
    if diagnosis.severity is Severity.ADVICE:
        return 4
    if diagnosis.lead.code in SYMPTOMS:
        return 2
    if verdict == "confirmed" and diagnosis.lead.code in explained:
        return 1
    return {"confirmed": 0, "no effect": 3, "worse": 3}.get(verdict, 1)


def _compatible(changes: Sequence[Intervention]) -> bool:
    """Do the edits among them touch different lines?"""
    from unstuck.interventions import EditSource

    spans = sorted(
        (edit.path, edit.line, edit.end_line) for c in changes if isinstance(c, EditSource) for edit in c.edits
    )
    return all(a[0] != b[0] or a[2] < b[1] for a, b in itertools.pairwise(spans))
