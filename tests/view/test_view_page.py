"""The page of a report as one file: whole, safe, and readable without its pictures."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes import SCRIPT, detailed_finding, make_finding
from unstuck.events import Drawn, Filters, Form, Place, PredictionKind, TensorShown
from unstuck.findings import Edit, Finding, Fix, Severity, merge
from unstuck.findings.curve import Curve
from unstuck.findings.investigation import Investigation, Reason, Skipped
from unstuck.findings.preview import Dynamics, FirstLayer, Preview, Snapshot, Targets
from unstuck.findings.result import Result, RunSummary
from unstuck.findings.results import (
    Experiment,
    ExperimentVerdict,
    Matter,
    NamedCurve,
    Pair,
    Proof,
    ProofVerdict,
    Status,
)
from unstuck.findings.verdict import Verdict
from unstuck.record.trend import Trend
from unstuck.report.preview import preview_sentences
from unstuck.view.document import Document
from unstuck.view.html import page, script, style
from unstuck.view.store import keep, kept

HOSTILE = "<script>alert('x')</script>&\"'"


def descent(rate: float, steps: int, start: float = 3.0) -> Curve:
    """The losses of gradient descent on w²/2 + 0.05: a real curve, non-finite where it diverges."""
    weight, losses = start, []
    for _ in range(steps):
        loss = weight * weight / 2 + 0.05
        losses.append(loss if math.isfinite(loss) and loss < 1e30 else None)
        weight -= rate * weight
    return Curve(tuple(range(1, steps + 1)), tuple(losses))


def proof(about: Finding) -> Proof:
    pairs = tuple(
        Pair(seed, descent(0.0005, 120, 2 + seed / 5), descent(0.05, 120, 2 + seed / 5), Status.STOPPED, Status.STOPPED)
        for seed in range(3)
    )
    return Proof(
        code=about.code,
        about=(Matter(about.subject, about.place),),
        verdict=ProofVerdict.CONFIRMED,
        sentence="after 120 steps the loss is 0.05 instead of 1.8.",
        remedy="edit",
        steps=120,
        pairs=pairs,
        difference=-0.97,
        interval=(-0.99, -0.91),
    )


def sweep() -> Experiment:
    rates = tuple(1e-5 * 10 ** (index / 20) for index in range(121))
    losses = tuple(descent(rate, 30).losses[-1] for rate in rates)
    return Experiment(
        name="lr",
        verdict=ExperimentVerdict.TOO_LOW,
        sentence="The productive band is 0.05 to 0.5; your learning rate 1e-05 is far below it.",
        method="2 sweeps",
        curves=(NamedCurve("loss", Curve(tuple(range(121)), losses)),),
        measures={"own": 1e-5, "lowest": 0.05, "highest": 0.5, "suggested": 0.2, "diverged_at": None},
        x_axis="learning rate",
        xs=rates,
        caveats=("The schedule was overridden.",),
    )


def picture(seed: int, target: str) -> Drawn:
    pixels = bytes((x * seed + y * 7) % 256 for y in range(12) for x in range(12) for _ in range(3))
    return Drawn(12, 12, 3, pixels, target=target)


def preview(class_name: str = "cat") -> Preview:
    weights = tuple(Drawn(5, 5, 1, bytes((seed * 31 + i * 10) % 256 for i in range(25))) for seed in range(8))
    shots = tuple(Snapshot(step, tuple(float(i % 3 if step > 8 else 1) for i in range(6))) for step in (0, 1, 8, 20))
    return Preview(
        model="Net",
        tensors=(
            TensorShown(
                name="x",
                dtype="float32",
                shape=(6, 3, 12, 12),
                low=0.0,
                high=255.0,
                mean=120.0,
                spread=70.0,
                quantiles=(0.0, 60.0, 120.0, 200.0, 254.0),
                examples=6,
                duplicates=2,
                form=Form.PICTURES,
                scaling="0 is black, 255 white",
                drawn=tuple(picture(seed, class_name) for seed in range(1, 7)),
            ),
            TensorShown(
                name="rows",
                dtype="float32",
                shape=(6, 3),
                examples=6,
                form=Form.TABLE,
                drawn=(Drawn(numbers=(1.5, None)),),
            ),
            TensorShown(
                name="ids",
                dtype="int64",
                shape=(6, 4),
                examples=6,
                form=Form.IDS,
                drawn=(Drawn(numbers=(4.0,), text=HOSTILE),),
            ),
            TensorShown(
                name="wave",
                dtype="float32",
                shape=(6, 90),
                examples=6,
                form=Form.SERIES,
                drawn=(Drawn(numbers=tuple(math.sin(i / 9) for i in range(90)), target="1"),),
            ),
        ),
        targets=Targets(loss="cross_entropy", dtype="int64", shape=(6,), counts={"0": 80, "1": 7, "2": 13}, batches=4),
        class_names=(class_name, "dog", "fox"),
        first_layer=FirstLayer(
            name="features.0",
            kind="Conv2d",
            count=8,
            start=Filters(step=0, scale=0.3, pictures=weights),
            end=Filters(step=20, scale=0.4, pictures=weights),
            moved=0.123,
        ),
        dynamics=Dynamics(kind=PredictionKind.CLASS, targets=(0.0, 1.0, 2.0, 0.0, 1.0, 2.0), snapshots=shots),
    )


def investigation(folder: Path, shown: Preview | None = None, **more: Any) -> Investigation:
    (folder / "train.py").write_text(SCRIPT)
    script = str(folder / "train.py")
    edit = Edit(script, 5, 16, 5, 50, "self.head(x)")
    lead = msgspec.structs.replace(
        detailed_finding(),
        place=Place(script, 5, 16, 5, 50, "Net.forward"),
        fix=Fix("Return the logits.", (edit,), "safe"),
    )
    other = make_finding("G10", severity=Severity.WARNING, line=None, subject="x", message="Another matter.")
    verdict = Verdict(
        diagnoses=tuple(merge([lead])) + tuple(merge([other])),
        trend=Trend("flat", 400, first=2.3, last=2.29),
        checked=("O12", "G10"),
    )
    previews = () if shown is None else (shown,)
    run = RunSummary(script=script, steps=400, status="stopped", record="", previews=previews)
    fields: dict[str, Any] = {
        "result": Result(command="diagnose", verdict=verdict, run=run),
        "experiments": (sweep(),),
        "proofs": (proof(lead),),
        "ruled_out": ("overfit: one batch is learned by heart in 80 steps.",),
        "skipped": (Skipped("overfit", Reason.BUDGET, needed=80.2, left=12.7),),
        "ended": Reason.BUDGET,
        "protected": "Nothing of yours was written.",
        "next_command": f"unstuck lint --fix {script}",
        "seconds": 41.0,
        "budget": 300.0,
        "folder": folder,
    }
    return Investigation(**{**fields, **more})


class Reader(HTMLParser):
    """What a browser would see before it runs anything: elements, attributes, and the data of the page."""

    VOID = ("meta", "img", "br", "input", "link")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.contents: dict[str, str] = {}
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        kind = self.seen[-1][1].get("type") or self.open[-1] if self.open else ""
        self.contents[kind] = self.contents.get(kind, "") + data


def shown(done: Investigation) -> Document:
    """The data that the page of this investigation is drawn from, taken from the page."""
    return msgspec.json.decode(Reader(page(done)).contents["application/json"], type=Document)


def test_the_page_says_what_the_text_report_says(tmp_path: Path) -> None:
    words = str(msgspec.to_builtins(shown(investigation(tmp_path, preview())), str_keys=True))
    for part in (
        "Cause: O12 double-softmax. Fixing it lowered the loss by 91–99 % (3 seeds).",
        "torch.softmax(self.head(x), dim=1)",
        "0.1934 of the right one (threshold 0.5)",
        "The loss is flat: 2.3 → 2.29 over 400 steps.",
        "With the change: after 120 steps the loss is 0.05 instead of 1.8.",
        "Another matter.",
        "The productive band is 0.05 to 0.5",
        "one batch is learned by heart",
        "overfit: needs about 81 s, and 12 of 300 s were left.",
        "It took 41 of 300 s: the remaining experiments need more time than was left.",
        "unstuck lint --fix",
        "2 of the 6 examples of x in the first batch are copies of others",
    ):
        assert part in words


def test_without_scripts_the_page_shows_the_text_report(tmp_path: Path) -> None:
    content = page(investigation(tmp_path))
    text = content[content.index("<noscript>") : content.index("</noscript>")]
    assert "Cause: O12 double-softmax. Fixing it lowered the loss by 91–99 % (3 seeds)." in text


def test_edits_are_shown_as_a_diff(tmp_path: Path) -> None:
    lead = shown(investigation(tmp_path)).answer.findings[0]
    assert "-        return torch.softmax(self.head(x), dim=1)" in lead.difference
    assert "+        return self.head(x)" in lead.difference


def test_a_file_that_changed_since_gets_no_diff_and_no_lines(tmp_path: Path) -> None:
    done = investigation(tmp_path)
    changed = msgspec.structs.replace(done.result, changed=frozenset({str(tmp_path / "train.py")}))
    lead = shown(msgspec.structs.replace(done, result=changed)).answer.findings[0]
    assert lead.difference == []
    assert "torch.softmax" not in str(lead.excerpt)


def test_nothing_is_loaded_and_only_our_script_runs(tmp_path: Path) -> None:
    content = page(investigation(tmp_path, preview()))
    reader = Reader(content)
    assert reader.open == []
    assert not any(tag in ("link", "iframe", "object", "base", "img") for tag, _ in reader.seen)
    assert not any(name in ("src", "href") for _, attributes in reader.seen for name in attributes)
    assert not any(name.startswith("on") for _, attributes in reader.seen for name in attributes)
    assert "url(" not in style()
    assert "@import" not in style()
    policy = next(attributes["content"] for tag, attributes in reader.seen if "http-equiv" in attributes)
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert policy.endswith(f"; script-src 'sha256-{digest}'")
    assert f"<script>{script()}</script>" in content


@pytest.mark.parametrize("word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:"])
def test_the_script_makes_no_html_of_text_and_asks_no_other_host(word: str) -> None:
    assert word not in script().replace("http://www.w3.org/2000/svg", "")


def test_names_of_the_user_stay_text(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    previewed = msgspec.structs.replace(preview(HOSTILE), model=HOSTILE, trouble=HOSTILE)
    done = investigation(folder, previewed, ruled_out=(HOSTILE,), next_command=HOSTILE, protected=HOSTILE)
    run = msgspec.structs.replace(done.result.run, script=HOSTILE, arguments=(HOSTILE,), received=(HOSTILE,))
    evil = make_finding(
        message=HOSTILE, cause=HOSTILE, fix=Fix(f"{HOSTILE}\n    {HOSTILE}"), docs=HOSTILE, path=HOSTILE
    )
    result = msgspec.structs.replace(done.result, run=run, verdict=Verdict(diagnoses=tuple(merge([evil]))))
    experiment = msgspec.structs.replace(sweep(), sentence=HOSTILE, curves=(NamedCurve(HOSTILE, descent(0.1, 9)),))
    done = msgspec.structs.replace(done, result=result, experiments=(experiment,))
    reader = Reader(page(done))
    assert reader.open == []
    assert [tag for tag, _ in reader.seen].count("script") == 2, "the data and the script of the page"
    assert "<" not in reader.contents["application/json"]
    assert not any(name.startswith("on") for _, attributes in reader.seen for name in attributes)
    assert str(msgspec.to_builtins(shown(done), str_keys=True)).count("<script>alert(") >= 10


def test_every_picture_and_curve_has_words(tmp_path: Path) -> None:
    document = shown(investigation(tmp_path, preview()))
    (part,) = document.data
    assert part.filters is not None
    pictures = [*part.inputs[0].pictures, *part.filters.before, *part.filters.after]
    assert len(pictures) == 6 + 16
    assert all(picture.words for picture in pictures)
    (waves,) = part.inputs[3].waves
    assert waves.words == "example 1, from -0.999 to 1, target 1"
    (experiment,) = document.answer.experiments
    marks = {mark.label: (mark.low, mark.high) for mark in experiment.charts[0].marks}
    assert marks == {"productive band": (0.05, 0.5), "your rate": (1e-05, None), "suggested": (0.2, None)}
    proof = document.answer.findings[0].proof
    assert proof is not None
    assert [[line.label for line in chart.lines] for chart in proof.charts] == [["without", "with"]] * 3


def test_pictures_are_the_pixels_that_were_kept(tmp_path: Path) -> None:
    previewed = preview()
    picture = shown(investigation(tmp_path, previewed)).data[0].inputs[0].pictures[0]
    content = base64.b64decode(picture.source.removeprefix("data:image/png;base64,"))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack(">IIBB", content[16:26])
    assert (width, height, depth, kind) == (12, 12, 8, 2)
    start = content.index(b"IDAT")
    length = struct.unpack(">I", content[start - 4 : start])[0]
    rows = zlib.decompress(content[start + 4 : start + 4 + length])
    lines = [rows[i : i + 37] for i in range(0, len(rows), 37)]
    assert all(line[0] == 0 for line in lines)
    assert b"".join(line[1:] for line in lines) == previewed.tensors[0].drawn[0].pixels


def test_bars_are_as_long_as_classes_are_frequent(tmp_path: Path) -> None:
    target = shown(investigation(tmp_path, preview())).data[0].target
    assert target is not None
    assert [bar.count for bar in target.bars] == [80, 7, 13]


@pytest.mark.parametrize(
    "curve",
    [
        Curve(),
        Curve((1,), (None,)),
        Curve((1,), (0.5,)),
        Curve((1, 2, 3), (1.0, 1.0, 1.0)),
        Curve((1, 2, 3), (0.0, 0.0, 0.0)),
        Curve((1, 2, 3), (-3.0, 1e30, None)),
        Curve((1, 2), (5e-324, 1e308)),
    ],
)
def test_odd_curves_make_no_odd_page(tmp_path: Path, curve: Curve) -> None:
    pair = Pair(0, curve, curve, Status.CRASHED, Status.KILLED)
    experiment = msgspec.structs.replace(sweep(), curves=(NamedCurve("loss", curve),), xs=(1e-5, 1e-4, 1e-3))
    odd = msgspec.structs.replace(proof(detailed_finding()), pairs=(pair,))
    reader = Reader(page(investigation(tmp_path, proofs=(odd,), experiments=(experiment,))))
    assert reader.open == []
    assert not re.search(r"\b(NaN|Infinity)\b", reader.contents["application/json"])


def test_a_run_without_a_finding_has_a_page_too(tmp_path: Path) -> None:
    verdict = Verdict(checked=("O12",), trend=Trend("falling", 300, first=2.3, last=0.1))
    result = Result(command="diagnose", verdict=verdict, run=RunSummary(script="train.py", steps=300))
    document = shown(Investigation(result=result, folder=tmp_path))
    assert document.answer.headline == "Nothing found in 300 steps; 1 rule checked."
    assert document.answer.findings == []


def test_what_diagnose_found_out_can_be_shown_again(tmp_path: Path) -> None:
    document = shown(investigation(tmp_path, preview()))
    keep(document, tmp_path)
    assert kept(tmp_path) == document
    (tmp_path / "page.json").write_bytes(b'{"version": "0.0.0"}')
    assert kept(tmp_path) is None


def test_sentences_for_the_text_report() -> None:
    assert preview_sentences(()) == ()
    assert preview_sentences([preview()]) == (
        "2 of the 6 examples of x in the first batch are copies of others, bit by bit.",
        "Targets are int64 [6]; 3 classes came in the 4 batches looked at, the rarest 7 times, the most frequent 80.",
        "After step 20 the model predicts 3 classes for the 6 examples of the first batch, 1 class at step 0; "
        "6 right, 2 right at step 0.",
    )


def test_a_model_that_predicts_one_class_is_reported() -> None:
    shots = (Snapshot(0, (0.0, 1.0)), Snapshot(60, (1.0, 1.0)))
    same = Dynamics(kind=PredictionKind.CLASS, snapshots=shots, targets=(0.0, 1.0))
    shown = msgspec.structs.replace(preview(), dynamics=same)
    assert "predicts class 1 dog for all 2 examples" in preview_sentences([shown])[-1]


def test_a_run_that_shows_no_data_has_no_section_for_it(tmp_path: Path) -> None:
    assert shown(investigation(tmp_path)).data == []
