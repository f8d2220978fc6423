"""`unstuck.watch`: every way to begin and end one, and what it answers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy as loss_of
from torch.nn.utils import clip_grad_norm_

import unstuck
from unstuck.capture.torch_hooks.patches import living
from unstuck.events import Clip, Gauges, LossCall, TensorGauges
from unstuck.record import RecordError, read


def train(steps: int = 30, *, softmax: bool = False, model: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, labels = torch.randn(16, 8), torch.randint(3, (16,))
    for _ in range(steps):
        scores = model(inputs)
        loss = nn.functional.cross_entropy(scores.softmax(1) if softmax else scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def untouched() -> list[object]:
    """What a watch changes in torch while it goes on."""
    functions = (torch.autograd.backward, nn.Module.train, torch.optim.Optimizer.__init__, nn.functional.cross_entropy)
    return [id(function.__code__) for function in functions]


def codes(watch: unstuck.watch.program.Watching) -> list[str]:
    return [diagnosis.lead.code for diagnosis in watch.findings]


def test_a_with_block_ends_with_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    before = untouched()
    with unstuck.watch() as w:
        train(softmax=True)
        assert untouched() != before
    assert untouched() == before
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "notebook finished after 30 optimizer steps" in shown.err
    assert "error O12 double-softmax" in shown.err
    assert codes(w) == ["O12"]
    assert isinstance(w.findings[0], unstuck.Diagnosis)
    assert w.steps == 30
    assert "error O12" in w.report() == str(w)


def test_begun_and_stopped_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    before = untouched()
    w = unstuck.watch(print=False)
    train(5)
    assert "is still running after 5 optimizer steps" in w.report()
    assert "which has no end" not in w.report()
    assert repr(w) == "<unstuck.watch: watching, 5 steps, nothing found>"
    w.stop()
    w.stop()
    train(5)
    assert untouched() == before
    assert repr(w) == "<unstuck.watch: ended, 5 steps, nothing found>"
    assert "finished after 5 optimizer steps" in w.report()
    assert capsys.readouterr() == ("", "")
    with pytest.raises(RuntimeError, match="has ended"), w:
        pass


def test_findings_while_it_goes_on() -> None:
    with unstuck.watch(print=False) as w:
        assert w.findings == []
        train(softmax=True)
        assert codes(w) == ["O12"]


def test_what_a_notebook_shows() -> None:
    with unstuck.watch(print=False) as w:
        train(softmax=True)
    assert "error O12 double-softmax" in w._repr_html_()
    assert "30 optimizer steps, finished" in w._repr_html_()


def test_the_record_lies_where_it_is_wanted(tmp_path: Path) -> None:
    with unstuck.watch(print=False, name="first try") as w:
        train(2)
    assert w.record.parent == tmp_path / ".unstuck" / "runs"
    assert w.record.name.endswith("-first_try")
    with unstuck.watch(print=False, record="here") as w:
        train(2)
    assert w.record == tmp_path / "here"
    assert read(w.record).started.watched == "watch"
    with pytest.raises(RecordError, match="already a record"):
        unstuck.watch(record="here")
    assert living() == 0


def test_twice_in_a_row() -> None:
    seen = []
    for _ in range(2):
        with unstuck.watch(print=False) as w:
            train(12)
        seen.append([(type(event), event.step) for event in read(w.record).events])
    assert seen[0] == seen[1]
    assert len(seen[0]) > 50


def test_nested_watches_both_see_everything_and_change_nothing() -> None:
    bare = train(12).state_dict()
    with unstuck.watch(print=False) as alone:
        train(12)
    with unstuck.watch(print=False) as outer, unstuck.watch(print=False) as inner:
        watched = train(12).state_dict()
    assert all(torch.equal(bare[name], watched[name]) for name in bare)
    kinds = [[type(event) for event in read(w.record).events] for w in (alone, outer, inner)]
    assert kinds[0] == kinds[1] == kinds[2]
    assert living() == 0


@pytest.mark.parametrize("first", [0, 1])
def test_watches_that_overlap_end_in_any_order(first: int) -> None:
    before = untouched()
    both = [unstuck.watch(print=False), unstuck.watch(print=False)]
    train(3)
    both[first].stop()
    train(4)
    both[1 - first].stop()
    assert untouched() == before
    assert [w.steps for w in both] == ([3, 7] if first == 0 else [7, 3])
    steps = [len(list(read(w.record).of(Gauges))) for w in both]
    assert steps == [w.steps for w in both]


def test_a_cell_that_is_run_again_ends_the_watch_of_the_last_time() -> None:
    before = untouched()
    w = unstuck.watch(print=False)
    train(2)
    first = w.record
    w = unstuck.watch(print=False)
    gc.collect()
    assert living() == 1
    assert read(first).ended
    unstuck.watch(print=False)
    unstuck.watch(print=False)
    assert living() == 2
    w.stop()
    del w
    unstuck.watch.program._end_all()
    assert untouched() == before


def test_an_exception_is_recorded_and_passes_on(capsys: pytest.CaptureFixture[str]) -> None:
    before = untouched()
    with pytest.raises(RuntimeError, match="mat1"), unstuck.watch() as w:
        nn.Linear(3, 3)(torch.ones(2, 2))
    assert untouched() == before
    assert "crashed after 0 optimizer steps" in capsys.readouterr().err
    crash = read(w.record).crash
    assert crash
    assert crash.kind == "RuntimeError"
    assert "crashed" in w.report()


def test_findings_reach_the_callback_once_each() -> None:
    heard: list[unstuck.Diagnosis] = []
    with unstuck.watch(print=False, on_finding=heard.append):
        train(softmax=True)
    assert [diagnosis.lead.code for diagnosis in heard] == ["O12"]


def test_an_error_in_the_callback_is_shown_and_the_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(finding: unstuck.Diagnosis) -> None:
        raise LookupError("mine")

    with unstuck.watch(print=False, on_finding=wrong) as w:
        train(softmax=True)
    shown = capsys.readouterr().err
    assert "LookupError: mine" in shown
    assert "the training goes on" in shown
    assert codes(w) == ["O12"]


def test_series_of_steps_and_layers() -> None:
    with unstuck.watch(print=False, every=1) as w:
        train(12)
    losses = w.series("loss")
    assert [step for step, _ in losses] == list(range(12))
    assert losses[-1][1] < losses[0][1]
    assert {rate for _, rate in w.series("lr")} == {0.1}
    assert len(w.series("grad_norm")) == 12
    assert w.series("loss_scale") == []
    ratios = w.series("update_ratio", layer="0.weight")
    assert len(ratios) >= 11
    assert all(0 < value < 1 for _, value in ratios)
    assert w.series("weight_norm", "2.bias") != w.series("weight_norm", "2.weight")


def test_groups_are_told_as_a_whole() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, 0.1)
    with unstuck.watch(print=False, every=1) as w:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).square().sum().backward()
            before = [p.detach().clone() for p in model[2].parameters()]
            optimizer.step()
    gradient, weight, change = (
        torch.cat([part.flatten() for part in parts]).norm().item()
        for parts in (
            [p.grad for p in model[2].parameters()],
            before,
            [p.detach() - b for p, b in zip(model[2].parameters(), before, strict=True)],
        )
    )
    assert w.series("grad_norm", layer="group 1")[-1] == (3, pytest.approx(gradient, rel=1e-3))
    assert w.series("weight_norm", layer="group 1")[-1][1] == pytest.approx(weight, rel=1e-3)
    assert w.series("update_ratio", layer="group 1")[-1][1] == pytest.approx(change / weight, rel=1e-3)
    assert w.series("grad_weight_ratio", layer="group 1")[-1][1] == pytest.approx(gradient / weight, rel=1e-3)
    own = dict(w.series("grad_norm", layer="2.bias"))[3] / dict(w.series("weight_norm", layer="2.bias"))[3]
    assert w.series("grad_weight_ratio", layer="2.bias")[-1] == (3, pytest.approx(own))


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Each example takes so many seconds."""

    def __init__(self, length: int, seconds: float) -> None:
        self._length, self._seconds = length, seconds

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.ones(4)


def test_waiting_for_data_is_told() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with unstuck.watch(print=False) as w:
        for batch in torch.utils.data.DataLoader(Slow(8, 0.01), batch_size=2):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
    waits, whole = w.series("data_seconds"), w.series("seconds")
    assert [step for step, _ in waits] == [0, 1, 2, 3]
    assert all(0.02 <= wait <= total for (_, wait), (_, total) in zip(waits, whole, strict=True))


@pytest.mark.parametrize("every", [None, 1])
def test_the_share_of_a_gradient_that_is_not_finite_is_told(every: int | None) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with unstuck.watch(print=False, every=every) as w:
        for step in range(80):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).mean().backward()
            if step in (4, 70):
                model.weight.grad[0, :2] = torch.tensor([float("nan"), float("inf")])
            optimizer.step()
    told = w.series("grad_nonfinite", layer="weight")
    assert told == ([(4, 0.25), (70, 0.25)] if every else [(4, 0.25), (70, 0.25)][: len(told)])
    assert told


def test_every_asks_for_fewer_steps() -> None:
    with unstuck.watch(print=False, every=4) as w:
        train(12)
    assert [step for step, _ in w.series("grad_norm")] == [0, 4, 8]
    assert [step for step, _ in w.series("weight_norm", layer="0.weight")] == [0, 4, 8]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "update"}, "there is no gauge 'update'; the gauges are "),
        ({"name": "loss", "optimizer": "Adam"}, "there is no loss of an optimizer 'Adam'; name one of SGD"),
        ({"name": "update_ratio"}, "update_ratio is measured layer by layer; name one with layer=: 0.weight, "),
        ({"name": "update_ratio", "layer": "0"}, "'0' is more than one layer; name one of 0.weight, 0.bias"),
        ({"name": "weight_norm", "layer": "fc"}, "weight_norm was not measured for any layer 'fc'; name one of "),
    ],
)
def test_a_series_that_does_not_exist(wrong: dict[str, str], sentence: str) -> None:
    with unstuck.watch(print=False) as w:
        train(2)
    with pytest.raises(ValueError, match=sentence):
        w.series(**wrong)


def test_numbers_as_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    with unstuck.watch(print=False, every=1) as w:
        train(6)
    table = w.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == ["step", "gauge", "layer", "value", "optimizer"]
    losses = table[table.gauge == "loss"]
    assert list(zip(losses.step, losses.value, strict=True)) == w.series("loss")


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with unstuck.watch(print=False) as w:
        train(2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        w.to_pandas()


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"model": "net"}, TypeError, "watch takes a model, a torch.nn.Module, not a str"),
        ({"optimizer": nn.Linear(1, 1)}, TypeError, "watch takes an optimizer of torch .* not a Linear"),
        ({"every": 0}, ValueError, "every must be a positive integer, not 0"),
        ({"every": 2.5}, ValueError, "every must be a positive integer"),
        ({"on_finding": 3}, TypeError, "on_finding must be a function"),
        ({"stop_on": "advice"}, ValueError, 'stop_on must be "error" or "warning"'),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: dict[str, object], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence):
        unstuck.watch(**arguments)  # type: ignore[arg-type]
    assert living() == 0
    assert not list(tmp_path.iterdir())


def test_with_a_model_only_its_own_numbers_are_told() -> None:
    one, other = nn.Linear(8, 3), nn.Linear(8, 3)
    with unstuck.watch(one, print=False, every=1) as w:
        train(3, model=one)
        train(4, model=other)
    with unstuck.watch(print=False, every=1) as both:
        train(3, model=one)
        train(4, model=other)
    assert len(both.to_pandas().query("gauge == 'lr'")) == 7
    assert {row.optimizer for row in w._engine.rows()} <= {"SGD"}


def test_a_watch_holds_on_to_neither_model_nor_optimizer() -> None:
    import weakref

    model = nn.Linear(8, 3)
    with unstuck.watch(model, print=False) as w:
        train(3, model=model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert w.series("loss")


def run(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(textwrap.dedent(program))
    variables = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**variables, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


LOOP = """
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(300):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 8)).softmax(1), torch.randint(3, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_watch_that_nobody_stops_ends_with_the_program(tmp_path: Path) -> None:
    done = run(tmp_path, "import torch, unstuck\nunstuck.watch()" + LOOP + "print('the end')\n")
    assert (done.returncode, done.stdout) == (0, "the end\n")
    assert "program.py finished after 300 optimizer steps" in done.stderr
    assert "error O12 double-softmax" in done.stderr
    assert "--> program.py:6" in done.stderr
    assert "python program.py  should show no O12" in done.stderr


def test_a_crash_after_that_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, "import torch, unstuck\nunstuck.watch()\ntorch.ones(2) @ torch.ones(3)\n")
    assert done.returncode == 1
    assert "program.py crashed after 0 optimizer steps" in done.stderr


def test_a_hopeless_run_is_stopped_and_its_cleanup_runs(tmp_path: Path) -> None:
    program = (
        "import atexit, time, torch, unstuck\natexit.register(print, 'last words')\nunstuck.watch(stop_on='error')\n"
    )
    loop = LOOP.replace("    optimizer.step()\n", "    optimizer.step()\n    time.sleep(0.03)\n")
    body = textwrap.indent(loop, "    ")
    done = run(tmp_path, f"{program}try:\n{body}\nfinally:\n    print('step', step)\n")
    assert done.returncode == unstuck.RunStopped.CODE == 4
    words = done.stdout.split()
    assert words[-2:] == ["last", "words"]
    assert int(words[1]) < 250
    assert "program.py was stopped early, after" in done.stderr
    assert done.stderr.startswith("unstuck: error O12 double-softmax: ")
    assert "Traceback" not in done.stderr


def test_stopped_in_a_finally_block_it_knows_the_crash() -> None:
    w = unstuck.watch(print=False)

    def program() -> None:
        try:
            train(2)
            raise LookupError("mine")
        finally:
            w.stop()

    with pytest.raises(LookupError):
        program()
    assert "crashed after 2 optimizer steps" in w.report()


CELLS = (
    "import torch, unstuck\nfrom torch import nn\nmodel = nn.Linear(8, 3)",
    "w = unstuck.watch(model, print=False)",
    """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 8)).softmax(1), torch.randint(3, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "w.stop()\nreport, html = w.report(), w._repr_html_()",
)


def test_the_cells_of_a_notebook() -> None:
    """A cell is compiled with a name that is no file, in a namespace called `__main__`, and may be run again."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number in (0, 1, 2, 1, 2, 3):
        exec(compile(CELLS[number], f"<ipython-input-{number}>", "exec"), names)
    assert "notebook finished after 20 optimizer steps" in str(names["report"])
    assert "error O12 double-softmax" in str(names["html"])
    assert living() == 0


@pytest.mark.slow
def test_workers_that_read_the_program_again_watch_nothing(tmp_path: Path) -> None:
    program = """
    import multiprocessing, torch, unstuck
    unstuck.watch(record="here")
    def work(number):
        return number + 1
    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(work, [1]))
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "[2]\n")
    assert done.stderr.count("─── unstuck") == 1
    assert not list(tmp_path.glob(".unstuck/runs/*"))


def test_a_step_as_a_whole_has_no_layers() -> None:
    with unstuck.watch(print=False) as w:
        train(5)
    for gauge in ("loss", "seconds", "memory"):
        with pytest.raises(ValueError, match=f"{gauge} is measured for a step as a whole and has no layers"):
            w.series(gauge, layer="0.weight")
    assert w.series("grad_norm", layer="0.weight")


@pytest.mark.parametrize("gauge", ["update_ratio", "dead", "rms", "lr"])
def test_an_unknown_layer_is_told_with_the_known_ones(gauge: str) -> None:
    with unstuck.watch(print=False) as w:
        train(5)
    with pytest.raises(ValueError, match=r"layer 'fc1'; name one of .*0"):
        w.series(gauge, layer="fc1")


def test_before_anything_is_measured_a_layer_may_still_come() -> None:
    with unstuck.watch(print=False) as w:
        assert w.series("update_ratio", layer="fc1.weight") == []


@pytest.mark.parametrize("place", ["notes.txt", "notes.txt/below", "old.jsonl"])
def test_a_record_where_there_is_something_else_is_one_sentence(place: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "old.jsonl").write_text("mine")
    with pytest.raises(RecordError) as refused:
        unstuck.watch(record=tmp_path / place, print=False)
    said = str(refused.value)
    assert place in said
    assert said.count(".\n") == 0
    assert said.endswith((".", "record=."))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not living()


@pytest.mark.parametrize("place", ["", 3, b"bytes"])
def test_what_names_no_place_is_one_sentence(place: object) -> None:
    with pytest.raises(ValueError, match="record must name a new folder, not"):
        unstuck.watch(record=place, print=False)  # type: ignore[arg-type]


def test_a_record_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    with unstuck.watch(record=tmp_path / "runs" / "today" / "first", print=False) as w:
        train(5)
    assert read(tmp_path / "runs" / "today" / "first").ended
    assert w.series("loss")


def test_watches_in_each_other_both_see_that_graphs_are_kept() -> None:
    losses = []
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with unstuck.watch(print=False) as outer, unstuck.watch(model, optimizer, print=False) as inner:
        for _ in range(20):
            loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.arange(16) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
    assert "M03" in codes(outer)
    assert "M03" in codes(inner)


def test_an_optimizer_that_is_given_and_never_steps() -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with unstuck.watch(model, optimizer, print=False) as w:
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.arange(16) % 3).backward()
    assert codes(w)[:1] == ["O04"]


def test_one_cause_seen_at_several_calls_is_one_finding() -> None:
    model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, targets = torch.randn(16, 8), torch.ones(16, 1)
    loss_of = nn.BCEWithLogitsLoss()
    with unstuck.watch(print=False) as w:
        for _ in range(20):
            first = loss_of(model(inputs), targets)
            second = loss_of(model(-inputs), 1 - targets)
            optimizer.zero_grad()
            (first + second).backward()
            optimizer.step()
    found = [diagnosis for diagnosis in w.findings if diagnosis.lead.code == "O13"]
    assert len(found) == 1
    assert len({place.line for place in found[0].lead.places}) == 2
    facts = [(item.name, item.value) for item in found[0].evidence]
    assert ("places that show it", 2) in facts
    assert [name for name, _ in facts].count("calls seen") == 1


def test_functions_that_were_imported_before_are_seen_and_put_back() -> None:
    before = (loss_of, clip_grad_norm_)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with unstuck.watch(print=False) as w:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    record = read(w.record)
    assert [len(list(record.of(kind))) for kind in (LossCall, Clip)] == [3, 3]
    assert (loss_of, clip_grad_norm_) == before


def test_gauges_of_every_step_are_there_and_in_order() -> None:
    """Beyond the dense start they are kept for a while and told together."""
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    norms: list[float] = []
    with unstuck.watch(print=False, every=1) as w:
        for _ in range(180):
            optimizer.zero_grad()
            loss_of(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
            norms.append(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))
            optimizer.step()
    record = read(w.record)
    for kind in (Gauges, TensorGauges):
        assert [event.step for event in record.of(kind)] == list(range(180))
    assert [event.grad_norm for event in record.of(Gauges)] == pytest.approx(norms, rel=1e-3)


def test_weights_that_change_between_the_steps_are_not_taken_for_updates() -> None:
    model = nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    exact: list[float] = []
    with unstuck.watch(print=False, every=1) as w:
        for _ in range(80):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            before = model.weight.detach().clone()
            optimizer.step()
            exact.append(float((model.weight.detach() - before).norm() / before.norm()))
            model.weight.data.mul_(1.5).clamp_(-0.3, 0.3)
    ratios = [event.update_ratio[0] for event in read(w.record).of(TensorGauges)]
    assert ratios == pytest.approx(exact, rel=0.02)


def test_a_group_with_a_gradient_that_is_not_finite_has_no_norm() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1].parameters()}], 0.0)
    with unstuck.watch(print=False, every=1) as w:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            if step == 2:
                model[0].weight.grad[0, 0] = float("nan")
            optimizer.step()
            with torch.no_grad():
                model[0].weight.nan_to_num_()
    assert [step for step, _ in w.series("grad_norm", layer="group 0")] == [0, 1, 3]
    assert [step for step, _ in w.series("grad_norm", layer="group 1")] == [0, 1, 2, 3]


def test_what_an_evaluation_waits_for_is_no_part_of_a_step() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with unstuck.watch(print=False) as w:
        for _ in torch.utils.data.DataLoader(Slow(4, 0.25)):
            pass
        for batch in torch.utils.data.DataLoader(torch.ones(3, 4)):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
    waits = w.series("data_seconds")
    assert [step for step, _ in waits] == [0, 1, 2]
    assert sum(wait for _, wait in waits) < 1.0
