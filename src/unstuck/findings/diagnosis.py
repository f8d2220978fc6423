"""Findings about one matter merged into diagnoses, and diagnoses ranked, cause before symptom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from unstuck.events import Place
from unstuck.findings.finding import Confidence, Evidence, Finding, Severity, Witness


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of one rule about one subject, as one statement with all its witnesses."""

    lead: Finding
    findings: tuple[Finding, ...]
    explains: tuple[str, ...] = ()
    """Codes of other diagnoses in the same result that this one is the cause of."""

    @property
    def is_hygiene(self) -> bool:
        """Is it about memory, time or reproducibility, and explains nothing else that was found?"""
        return self.lead.hygiene and not self.explains

    @property
    def variant(self) -> str:
        """That of its lead."""
        return self.lead.variant

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """Every witness once, in the order source, setup, run, surface, experiment."""
        seen = {finding.witness for finding in self.findings}
        return tuple(witness for witness in Witness if witness in seen)

    @property
    def severity(self) -> Severity:
        """The loudest of its findings."""
        return min((finding.severity for finding in self.findings), key=lambda severity: severity.rank)

    @property
    def confidence(self) -> Confidence:
        """Certain as soon as one witness is."""
        certain = any(finding.confidence is Confidence.CERTAIN for finding in self.findings)
        return Confidence.CERTAIN if certain else Confidence.LIKELY

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What all witnesses quote, each fact once: what one of them has measured at several lines, at the first."""
        facts: dict[tuple[str, str], Evidence] = {}
        quoted: set[tuple[Witness, str]] = set()
        for finding in self.findings:
            fresh = [item for item in finding.evidence if (finding.witness, item.name) not in quoted]
            quoted |= {(finding.witness, item.name) for item in fresh}
            facts |= {(item.name, str(item.value)): item for item in fresh}
        return tuple(facts.values())


def merge(findings: Iterable[Finding]) -> list[Diagnosis]:
    """Unite findings of one rule that share a subject or a place, whichever witness saw them.

    The result depends on what was found, not on the order in which it was found.
    """
    by_rule: dict[str, list[list[Finding]]] = {}
    for finding in sorted(findings, key=_order):
        apart: list[list[Finding]] = []
        united = [finding]
        for group in by_rule.get(finding.code, ()):
            if any(_same_matter(finding, other) for other in group):
                united += group
            else:
                apart.append(group)
        by_rule[finding.code] = [*apart, united]
    return [_diagnosis(sorted(group, key=_order)) for groups in by_rule.values() for group in groups]


def _order(finding: Finding) -> tuple[object, ...]:
    spot = finding.place or Place(path="", line=0)
    witness = list(Witness).index(finding.witness)
    return (finding.code, witness, spot.path, spot.line, spot.column, _spelled(finding))


def _spelled(finding: Finding) -> bytes:
    try:
        return msgspec.json.encode(finding)
    except ValueError:  # half a character in a file name, or an integer of thousands of digits
        return ascii(finding).encode()


def _same_matter(one: Finding, other: Finding) -> bool:
    if one.witness is other.witness:
        return one.place == other.place and one.subject == other.subject
    if (one.subject.kind == "target") != (other.subject.kind == "target"):
        return False  # a loss is given two things on one line, and each may be wrong in its own way
    shared_lines = {place.key for place in one.places} & {place.key for place in other.places}
    return bool(shared_lines) or one.subject == other.subject


def _diagnosis(group: Sequence[Finding]) -> Diagnosis:
    distinct = [finding for index, finding in enumerate(group) if finding not in group[:index]]
    # Numbers of the user's own run convince more than text: the run leads, the source knows the place and the fix.
    lead = min(distinct, key=lambda f: (f.severity.rank, f.witness is not Witness.RUN, f.confidence.value))
    if lead.witness is Witness.RUN and lead.subject.kind == "call":
        # An experiment that follows operations knows the line, where a graph has none.
        located = (f for f in distinct if f.witness is Witness.EXPERIMENT and f.subject == lead.subject and f.place)
        lead = next(located, lead)
    source = next((f for f in distinct if f.witness is Witness.SOURCE and f.place), None)
    if source and lead is not source:
        related = _other_lines(source, lead)
        lead = msgspec.structs.replace(lead, place=source.place, related=related, fix=source.fix)
    return Diagnosis(lead=lead, findings=tuple(distinct))


def _other_lines(source: Finding, lead: Finding) -> tuple[Place, ...]:
    """One place per line: the source's where both name it, since text knows the columns."""
    by_line = {place.key: place for place in (*lead.places, *source.related)}
    return tuple(place for key, place in by_line.items() if source.place and key != source.place.key)


def one_per_cause(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Unite what a run shows at several calls of one kind, by the same facts: one model, many losses.

    What the text has shown too knows the line to change, and stays apart.
    """
    by_cause: dict[tuple[object, ...], list[Diagnosis]] = {}
    for diagnosis in diagnoses:
        by_cause.setdefault(_cause(diagnosis), []).append(diagnosis)
    return [_united(group) for group in by_cause.values()]


def _cause(diagnosis: Diagnosis) -> tuple[object, ...]:
    lead = diagnosis.lead
    if diagnosis.witnesses != (Witness.RUN,) or lead.subject.kind != "call" or lead.place is None:
        return (id(diagnosis),)
    facts = tuple(item.name for item in lead.evidence)
    # Places that need different changes are different matters.
    return (lead.id, diagnosis.severity, diagnosis.confidence, lead.subject.key, facts, lead.fix.text)


def _united(group: Sequence[Diagnosis]) -> Diagnosis:
    first, others = group[0], group[1:]
    if not others:
        return first
    places = dict.fromkeys([*first.lead.related, *(place for other in others for place in other.lead.places)])
    related = tuple(place for place in places if place != first.lead.place)
    lead = msgspec.structs.replace(
        first.lead, related=related, evidence=(*first.lead.evidence, Evidence("places that show it", len(group)))
    )
    findings = tuple(finding for diagnosis in group for finding in diagnosis.findings if finding != first.lead)
    return Diagnosis(lead=lead, findings=(lead, *findings))


def rank(diagnoses: Iterable[Diagnosis], causes: dict[str, frozenset[str]]) -> list[Diagnosis]:
    """Order by what the user should fix first: causes above the symptoms they explain, then by severity.

    `causes` maps a rule's code to the codes it explains.
    """
    known = list(diagnoses)
    explained = [
        msgspec.structs.replace(d, explains=_explained_by(d, known, causes.get(d.lead.code, frozenset())))
        for d in known
    ]
    symptoms = {code for diagnosis in explained for code in diagnosis.explains}
    waiting, ranked = sorted(explained, key=lambda d: _priority(d, symptoms)), list[Diagnosis]()
    while waiting:
        symptoms_left = {code for diagnosis in waiting for code in diagnosis.explains}
        # Should two explain each other, the louder one is first.
        following = next((diagnosis for diagnosis in waiting if diagnosis.lead.code not in symptoms_left), waiting[0])
        waiting.remove(following)
        ranked.append(following)
    return ranked


def _explained_by(cause: Diagnosis, known: Sequence[Diagnosis], codes: frozenset[str]) -> tuple[str, ...]:
    """Codes of its symptoms: what another optimizer does is not one of them."""
    symptoms = (d for d in known if d.lead.code in codes and d.lead.code != cause.lead.code)
    return tuple(sorted({d.lead.code for d in symptoms if not _of_other_optimizers(cause.lead, d.lead)}))


def _of_other_optimizers(one: Finding, other: Finding) -> bool:
    kinds = (one.subject.kind, other.subject.kind)
    return kinds == ("optimizer", "optimizer") and one.subject.key != other.subject.key


def _priority(diagnosis: Diagnosis, symptoms: set[str]) -> tuple[object, ...]:
    lead = diagnosis.lead
    place = lead.place or Place(path="", line=0)
    return (
        diagnosis.is_hygiene,
        lead.code in symptoms and not diagnosis.explains,
        diagnosis.severity.rank,
        diagnosis.confidence is not Confidence.CERTAIN,
        lead.code in symptoms,
        -len(diagnosis.witnesses),
        place.path,
        place.line,
        place.column,
        lead.code,
        lead.subject.name,
        lead.variant,
    )
