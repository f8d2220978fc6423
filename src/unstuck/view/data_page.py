"""The page of the data sets of a script: what is wrong with them, and their examples as the model receives them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from unstuck.findings import Diagnosis
from unstuck.findings.data_sets import DataFound
from unstuck.findings.investigation import Investigation
from unstuck.findings.result import Result
from unstuck.findings.results import Experiment
from unstuck.findings.verdict import Verdict
from unstuck.report.data_sets import facts_of, previews_of
from unstuck.report.text import count
from unstuck.view.answer import answer_of
from unstuck.view.data import DataPart, data_of
from unstuck.view.document import Document, RunFacts


def data_document(done: Experiment, diagnoses: Sequence[Diagnosis], script: str, arguments: Sequence[str]) -> Document:
    """The answer first, then each data set."""
    found = done.data or DataFound()
    result = Result(command=done.name, verdict=Verdict(diagnoses=tuple(diagnoses)))
    answer = answer_of(Investigation(result=result, experiments=(done,)), None)
    kinds = len({diagnosis.lead.code for diagnosis in diagnoses})
    what = f"{count(kinds, 'thing')} to look at in the data." if kinds else "Nothing wrong was found in the data."
    run = RunFacts(name=script, command=done.name, script=script, arguments=list(arguments), status=str(done.verdict))
    return Document(
        run=run,
        answer=msgspec.structs.replace(
            answer,
            headline=what if found.sets else done.sentence,
            tone="warning" if kinds else "good" if found.sets else "quiet",
            sentences=[done.sentence, *done.caveats] if found.sets else [],
        ),
        data=_with_facts(data_of(previews_of(found), when=""), found),
    )


def _with_facts(parts: list[DataPart], found: DataFound) -> list[DataPart]:
    shown = []
    for part, one in zip(parts, found.sets, strict=True):
        facts = [f"{name}: {fact}" for name, fact in facts_of(one, found)]
        shown.append(msgspec.structs.replace(part, sentences=[*facts, *part.sentences]))
    return shown
