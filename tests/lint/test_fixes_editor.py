"""The edits a rule asks for: exact, minimal, and none where text alone cannot make the change."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from unstuck.events import Place
from unstuck.findings import Edit
from unstuck.source import Project, Script
from unstuck.source.edits.edit import Editor, Edits, apply, both, fix_with


def editor(text: str) -> Editor:
    return Editor(Script("train.py", text, ast.parse(text), Project()))


def call(on: Editor, name: str) -> ast.Call:
    """The first call of something that ends in `name`."""
    nodes = [node for node in ast.walk(on.tree) if isinstance(node, ast.Call)]
    return next(node for node in nodes if ast.unparse(node.func).split(".")[-1] == name)


def changed(text: str, change: Callable[[Editor], Edits | None]) -> str | None:
    edits = change(editor(text))
    return None if edits is None else apply(text, edits)


def move(text: str, what: str, to: str, *, before: bool = True) -> str | None:
    on = editor(text)
    way = on.move_before if before else on.move_after
    edits = way(call(on, what), call(on, to))
    return None if edits is None else apply(text, edits)


def test_inserts_before_and_after_with_the_indentation_of_the_statement() -> None:
    text = "for x in y:\n\tü(x).step(  # é\n\t\t1)  # done\n"
    before = changed(text, lambda on: on.insert_before(call(on, "step"), "a()\nb()"))
    after = changed(text, lambda on: on.insert_after(call(on, "step"), "a()"))
    assert before == "for x in y:\n\ta()\n\tb()\n\tü(x).step(  # é\n\t\t1)  # done\n"
    assert after == "for x in y:\n\tü(x).step(  # é\n\t\t1)  # done\n\ta()\n"


def test_inserts_after_the_last_line_of_a_file_without_a_final_newline() -> None:
    assert changed("step()", lambda on: on.insert_after(call(on, "step"), "a()")) == "step()\na()"


@pytest.mark.parametrize(
    "text",
    [
        "if x: step()\n",
        "a(); step()\n",
        "step(); a()\n",
        "if x: \\\n    step()\n",
        "if a:\n    pass\nelif step():\n    pass\n",
        "step() ; \n",
    ],
)
def test_statements_that_share_their_line_are_left_alone(text: str) -> None:
    for change in (
        lambda on: on.insert_before(call(on, "step"), "a()"),
        lambda on: on.insert_after(call(on, "step"), "a()"),
        lambda on: on.delete(call(on, "step")),
    ):
        assert changed(text, change) is None


def test_inserts_before_the_decorator_of_a_function() -> None:
    text = "@step(1)\n@other\ndef f():\n    pass\n"
    assert changed(text, lambda on: on.insert_before(call(on, "step"), "a()")) == "a()\n" + text


def test_deletes_a_statement_but_never_the_last_of_a_block() -> None:
    assert changed("if x:\n    a()\n    step()  # gone\nb()\n", lambda on: on.delete(call(on, "step"))) == (
        "if x:\n    a()\nb()\n"
    )
    assert changed("if x:\n    step()\n", lambda on: on.delete(call(on, "step"))) is None
    assert changed("a()\nstep()", lambda on: on.delete(call(on, "step"))) == "a()"


def test_moves_a_statement_with_its_comment() -> None:
    text = "for x in y:\n    loss.backward()\n    opt.zero_grad()  # clear\n    opt.step()\n"
    moved = "for x in y:\n    opt.zero_grad()  # clear\n    loss.backward()\n    opt.step()\n"
    assert move(text, "zero_grad", "backward") == moved
    text = "opt.step()\nclip(\n  p,  # all\n)  # c\nx = 1"
    assert move(text, "clip", "step") == "clip(\n  p,  # all\n)  # c\nopt.step()\nx = 1"
    assert move("a()\nb()\nstep()", "step", "a") == "step()\na()\nb()"
    assert move("step()\na()\nb()", "step", "b", before=False) == "a()\nb()\nstep()"


def test_a_comment_above_moves_if_it_is_about_this_statement_alone() -> None:
    alone = "a()\n\n# clear\nstep()\n\nb()\n"
    heading = "a()\n\n# update\nstep()\nb()\n"
    assert move(alone, "step", "a") == "# clear\nstep()\na()\n\n\nb()\n"
    assert move(heading, "step", "a") == "step()\na()\n\n# update\nb()\n"


def test_an_if_that_holds_nothing_else_moves_as_a_whole() -> None:
    text = "opt.step()\nif args.clip:\n    clip(p)\nb()\n"
    assert move(text, "clip", "step") == "if args.clip:\n    clip(p)\nopt.step()\nb()\n"
    assert move("opt.step()\nif c:\n    clip(p)\nelse:\n    b()\n", "clip", "step") is None
    assert move("opt.step()\nif c:\n    clip(p)\n    b()\n", "clip", "step") is None
    assert move("opt.step()\nfor q in p:\n    clip(q)\n", "clip", "step") is None


@pytest.mark.parametrize(
    "text",
    [
        "a()\np = f()\nclip(p)\n",
        "a(norm)\nnorm = clip(p)\n",
        "a()\nfor x in y:\n    if x:\n        break\nclip(p)\n",
        "a()\nself.p = 1\nclip(self.p)\n",
        "a()\nsizes[0] = 1\nclip(sizes)\n",
        "clip(p)\na(p)\n",
    ],
)
def test_moves_over_nothing_that_it_depends_on(text: str) -> None:
    moved = move(text, "clip", "a")
    assert moved is None


def test_wraps_with_the_parentheses_needed() -> None:
    def wrapped(text: str, name: str = "loss") -> str | None:
        on = editor(text)
        node = next(node for node in ast.walk(on.tree) if isinstance(node, ast.Name) and node.id == name)
        edits = on.wrap(node, "{} / accum")
        return None if edits is None else apply(text, edits)

    assert wrapped("loss.backward()") == "(loss / accum).backward()"
    assert wrapped("accelerator.backward(loss)") == "accelerator.backward(loss / accum)"
    assert wrapped("y = x - loss  # é") == "y = x - (loss / accum)  # é"
    assert wrapped("y = x[loss]") == "y = x[loss / accum]"
    text = "backward(ce + kl)"
    on = editor(text)
    assert apply(text, on.wrap(call(on, "backward").args[0], "{} / accum") or ()) == "backward((ce + kl) / accum)"
    assert apply(text, on.wrap(call(on, "backward").args[0], "float({})") or ()) == "backward(float(ce + kl))"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = softmax(x, dim=1)", "y = x"),
        ("y = softmax(a + b, dim=1).view(2)", "y = (a + b).view(2)"),
        ("y = f(softmax(a + b))", "y = f(a + b)"),
        ("y = softmax(\n    a\n    + é,\n    1,\n)", "y = (a\n    + é)"),
        ("y = softmax(x,  # scores\n 1)", None),
    ],
)
def test_leaves_only_a_part(before: str, after: str | None) -> None:
    def change(on: Editor) -> Edits | None:
        found = call(on, "softmax")
        return on.unwrap(found, found.args[0])

    assert changed(before, change) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("S(a, Softmax(1))", "S(a)"),
        ("S(*a, Softmax(dim=1), b)", "S(*a, b)"),
        ("S(\n    a,\n    Softmax(),\n)", "S(\n    a,\n)"),
        ("S(\n    a,  # first\n    Softmax()  # last\n)", "S(\n    a,  # first\n)"),
        ("S([a, Softmax()])", "S([a])"),
        ('S(O([("a", a), ("s", Softmax())]))', 'S(O([("a", a)]))'),
        ("x = Softmax()", None),
        ("x = Softmax(), 1", None),
        ("S(a,  # first\n    Softmax())", None),
    ],
)
def test_removes_an_element(before: str, after: str | None) -> None:
    assert changed(before, lambda on: on.remove_element(call(on, "Softmax"))) == after


def test_renames_an_attribute_and_leaves_the_import() -> None:
    text = "from torch import optim\no = optim.Adam(p, lr=1)  # Adam\n"
    assert changed(text, lambda on: on.rename_callee(call(on, "Adam"), "AdamW")) == (
        "from torch import optim\no = optim.AdamW(p, lr=1)  # Adam\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from torch.optim import Adam\nAdam(p)\n", "from torch.optim import AdamW\nAdamW(p)\n"),
        (
            "from torch.optim import Adam\nAdam(p)\nAdam(q)\n",
            "from torch.optim import Adam, AdamW\nAdamW(p)\nAdam(q)\n",
        ),
        ("from torch.optim import Adam, AdamW\nAdam(p)\n", "from torch.optim import AdamW\nAdamW(p)\n"),
        ("from torch.optim import AdamW, Adam\nAdam(p)\n", "from torch.optim import AdamW\nAdamW(p)\n"),
        (
            "from torch.optim import (\n    SGD,\n    Adam,  # best\n)\nAdam(p)\n",
            "from torch.optim import (\n    SGD,\n    AdamW,  # best\n)\nAdamW(p)\n",
        ),
        (
            "from torch.optim import Adam as A\nA(p)\n",
            "from torch.optim import Adam as A, AdamW\nAdamW(p)\n",
        ),
    ],
)
def test_renames_an_imported_name_with_its_import(before: str, after: str) -> None:
    name = "A" if " as " in before else "Adam"
    assert changed(before, lambda on: on.rename_callee(call(on, name), "AdamW")) == after


@pytest.mark.parametrize(
    "text",
    [
        "Adam = optim.Adam\nAdam(p)\n",
        "from torch.optim import *\nAdam(p)\n",
        "from torch.optim import Adam\nfrom mine import AdamW\nAdam(p)\n",
        "from torch.optim import Adam\ndef f(Adam):\n    Adam(p)\n",
    ],
)
def test_a_name_whose_meaning_is_not_plain_is_not_renamed(text: str) -> None:
    on = editor(text)
    by_name = next(node for node in ast.walk(on.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    assert on.rename_callee(by_name, "AdamW") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(dim=1)"),
        ("f(  # none\n)", "f(dim=1  # none\n)"),
        ("f(x)", "f(x, dim=1)"),
        ("f((x))", "f((x), dim=1)"),
        ("f(x, )", "f(x, dim=1 )"),
        ("f(x, dim=0)", "f(x, dim=1)"),
        ("f(\n    x,\n    y=2,  # two, too\n)", "f(\n    x,\n    y=2,  # two, too\n    dim=1,\n)"),
        ("f(\n    x,\n    y=2  # two, too\n)", "f(\n    x,\n    y=2, dim=1  # two, too\n)"),
        ("f(*xs)", "f(*xs, dim=1)"),
    ],
)
def test_sets_a_keyword(before: str, after: str) -> None:
    assert changed(before, lambda on: on.set_keyword(call(on, "f"), "dim", "1")) == after


@pytest.mark.parametrize("text", ["f(**options)", "f(x for x in y)"])
def test_a_keyword_is_not_added_where_it_could_clash_or_break(text: str) -> None:
    assert changed(text, lambda on: on.set_keyword(call(on, "f"), "dim", "1")) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(dim=1)", "f()"),
        ("f(x, dim=1)", "f(x)"),
        ("f((x), dim=1)", "f((x))"),
        ("f(dim=1, y=2)", "f(y=2)"),
        ("f(x, dim=(1), **more)", "f(x, **more)"),
        ("f(\n    x,\n    dim=1,\n)", "f(\n    x,\n)"),
        ("f(\n    x,  # rows\n    dim=1,\n)", "f(\n    x,  # rows\n)"),
        ("f(\n    x,  # rows\n    dim=1)", None),
        ("f(x)", None),
    ],
)
def test_removes_a_keyword(before: str, after: str | None) -> None:
    assert changed(before, lambda on: on.remove_keyword(call(on, "f"), "dim")) == after


def test_places_find_their_nodes_among_letters_of_any_width() -> None:
    text = 'x = "größe", f(é)\n'
    on = editor(text)
    place = Place("train.py", 1, 14, 1, 18)
    assert on.text_of(place) == "f(é)"
    found = on.call_at(place)
    assert found is not None
    assert ast.unparse(found) == "f(é)"
    assert on.replace(place, "g") == (Edit("train.py", 1, 14, 1, 18, "g"),)


def test_a_position_that_is_not_true_gets_no_edit() -> None:
    text = "x = f(1)\ny = g(2)\n"
    on = editor(text)
    found = call(on, "g")
    found.lineno = found.end_lineno = 1
    assert on.replace(found, "h()") is None
    assert on.set_keyword(found, "dim", "1") is None
    fstring = 'print(f"loss {loss:.3f}, é {f(x)}")'
    assert changed(fstring, lambda on: on.set_keyword(call(on, "f"), "dim", "1")) == (
        'print(f"loss {loss:.3f}, é {f(x, dim=1)}")'
    )


def test_another_file_gets_no_edit() -> None:
    on = editor("f(x)\n")
    elsewhere = Place("model.py", 1, 1, 1, 5)
    assert on.replace(elsewhere, "g") is None
    assert on.delete(elsewhere) is None
    assert on.move_before(elsewhere, elsewhere) is None
    assert both((), on.replace(elsewhere, "g")) is None
    assert fix_with("Do it.", None).edits == ()
    assert fix_with("Do it.", None).safety == "manual"
