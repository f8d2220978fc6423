"""Mistakes made by a program: which of them hurt, and does `unstuck diagnose` corner the part in which they are?

    python bench/mutants.py [--count 30] [--seed 0] [--budget 60s] [--jobs 2] [--show] [SCRIPT ...]

Takes 20 scripts of `examples/healthy`, of all fields, changes one place of one at random (but not how its examples are
made up, nor how it evaluates), and runs it next to the original, judged by the held-out number that the script prints.
Mutants that crash, and those that come out as well as the original, are counted and left out. The others are
diagnosed, and a table shows for each:

    cause        the first diagnosis names the line that was changed
    cornered     it names the part: data, model, loss or update
    else         it names another part
    nothing      no error and no warning

Parts go by lines: a class of modules is the model; lines with an optimizer, a schedule, backward() or clipping are the
update; lines that compute a loss are the loss; what is left is data. `--show` prints the mutants and runs nothing.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

HEALTHY = Path(__file__).parents[1] / "examples" / "healthy"
SECONDS = 120
"""What one run of a script may take."""
WORSE = 1.5
"""How many times as large the error of a mutant has to be as that of the original on its worst seed."""
TRIES = 40
"""Mutants that are tried for each that is wanted."""


class Outcome(NamedTuple):
    """How a script says how well it did."""

    pattern: str
    best: float
    """An error is the distance from this."""
    margin: float
    """Errors closer than this are alike."""


ACCURACY = (100.0, 4.0)
OUTCOMES = {
    "accumulation": Outcome(r"valid ([\d.]+|nan)", 0, 0.1),
    "actor_critic": Outcome(r"reward \S+ -> (\S+)", 1, 0.1),
    "autoencoder": Outcome(r"valid ([\d.]+|nan)", 0, 0.01),
    "cnn_batchnorm": Outcome(r"accuracy ([\d.]+|nan)%", *ACCURACY),
    "contrastive": Outcome(r"partners found ([\d.]+|nan)%", *ACCURACY),
    "diffusion": Outcome(r"samples lie ([\d.]+|nan)", 0, 0.1),
    "dqn": Outcome(r"return \S+ -> (\S+)", 25, 5),
    "finetune_frozen_backbone": Outcome(r"test accuracy ([\d.]+|nan)%", *ACCURACY),
    "gan": Outcome(r"distance from the ring \S+ -> (\S+)", 0, 0.2),
    "gpt": Outcome(r"valid ([\d.]+|nan)", 1.3, 0.1),
    "label_smoothing": Outcome(r"test accuracy ([\d.]+|nan)%", *ACCURACY),
    "lstm": Outcome(r"valid ([\d.]+|nan)", 0, 0.2),
    "mlp": Outcome(r"validation accuracy ([\d.]+|nan)%", *ACCURACY),
    "plateau_scheduler": Outcome(r"valid ([\d.]+|nan)", 0, 0.03),
    "regression_tabular": Outcome(r"validation error ([\d,.]+|nan)", 0, 2000),
    "rnn_clipping": Outcome(r"on fresh signals ([\d.]+|nan)", 0, 0.05),
    "seq2seq_padded": Outcome(r"token accuracy ([\d.]+|nan)%", *ACCURACY),
    "vae": Outcome(r"test ([\d.]+|nan)", 18, 2),
    "vit": Outcome(r"validation accuracy ([\d.]+|nan)%", *ACCURACY),
    "warmup_cosine": Outcome(r"validation accuracy ([\d.]+|nan)%", *ACCURACY),
}
UPDATE = re.compile(r"backward|\.step\(|zero_grad|optimi[sz]er|optim\.|sched|clip_grad|scaler|\blr\b|accumul|momentum")
LOSS = re.compile(r"loss|criterion|cross_entropy|mse|entropy|kl_?div|\bkl\b|log_prob|advantage", re.I)
EVALUATION = re.compile(r"eval|valid|test|held|accuracy|recall|sample|generate|report|demo|score", re.I)
PARTS = ("data", "model", "loss", "update")
PARTS_WITHOUT_A_LINE = {"P20": {"data"}}
"""Diagnoses that are about a part and not about a line: nothing about the targets can be read from the inputs."""


class Mutant(NamedTuple):
    """One place of one script, changed."""

    script: str
    operator: str
    line: int
    last: int
    before: str
    after: str
    source: str
    part: str


Edit = tuple[ast.AST, str]


class Source:
    """A script, and the places in it that may be changed."""

    def __init__(self, path: Path) -> None:
        self.name, self.text = path.stem, path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines(keepends=True)
        self.tree = ast.parse(self.text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.nodes = [node for node in ast.walk(self.tree) if hasattr(node, "lineno") and self._may_change(node)]

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def _may_change(self, node: ast.AST) -> bool:
        """What evaluates, prints, documents or reads arguments is left as it is, but for the defaults. So is what draws
        the examples, but for what it returns: that is the world, and not the program."""
        outside = [node, *self._around(node)]
        returns = any(isinstance(outer, ast.Return) for outer in outside)
        if not returns and any(self._draws_examples(outer) for outer in outside):
            return False
        for outer in outside:
            if isinstance(outer, ast.FunctionDef):
                is_test = EVALUATION.search(outer.name) or any(
                    "no_grad" in ast.unparse(d) for d in outer.decorator_list
                )
                if is_test and not isinstance(self.parents.get(outer), ast.ClassDef):
                    return False
            if isinstance(outer, ast.Import | ast.ImportFrom | ast.arguments | ast.JoinedStr | ast.Assert | ast.Raise):
                return False
            if isinstance(outer, ast.Call) and ast.unparse(outer.func) in ("print", "super", "parser.parse_args"):
                return False
            is_words = isinstance(outer, ast.Expr) and isinstance(outer.value, ast.Constant)
            if is_words or (isinstance(outer, ast.If) and "__name__" in ast.unparse(outer.test)):
                return False
        line = self.lines[node.lineno - 1]  # type: ignore[attr-defined]
        return not EVALUATION.search(line) and ".item()" not in line

    def _draws_examples(self, node: ast.AST) -> bool:
        """A function or a data set that makes up its examples. Exploring, noise and dropout are not that."""
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or "backward()" in ast.unparse(node):
            return False
        if isinstance(node, ast.ClassDef) and any("Module" in ast.unparse(base) for base in node.bases):
            return False
        if any(isinstance(one, ast.ClassDef) and "Module" in ast.unparse(one) for one in self._around(node)):
            return False
        return bool(re.search(r"torch\.rand|torch\.normal|multinomial", ast.unparse(node)))

    def segment(self, node: ast.AST) -> str:
        """Its text."""
        return ast.get_source_segment(self.text, node) or ""

    def edited(self, edits: list[Edit]) -> str | None:
        """The script with these nodes replaced; None if it is no Python, or the same."""
        text = self.text
        offsets = [0]
        for line in self.text.encode().splitlines(keepends=True):
            offsets.append(offsets[-1] + len(line))
        raw = text.encode()
        for node, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):  # type: ignore[attr-defined]
            begin = offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            raw = raw[:begin] + new.encode() + raw[end:]
        text = raw.decode()
        try:
            changed = ast.dump(ast.parse(text)) != ast.dump(self.tree)
        except SyntaxError:
            return None
        return text if changed else None

    def part(self, line: int) -> str:
        """Which part of the program a line belongs to."""
        around = [node for node in ast.walk(self.tree) if hasattr(node, "lineno")]
        inside = [n for n in around if n.lineno <= line <= (n.end_lineno or n.lineno)]
        kinds = [ast.unparse(base) for n in inside if isinstance(n, ast.ClassDef) for base in n.bases]
        statements = [
            n for n in inside if isinstance(n, ast.stmt) and not isinstance(n, ast.FunctionDef | ast.ClassDef)
        ]
        own = [n for n in statements if not any(isinstance(c, ast.stmt) for c in ast.iter_child_nodes(n))]
        text = ast.unparse(own[-1]) if own else (self.lines[line - 1] if 0 < line <= len(self.lines) else "")
        if any("Module" in kind for kind in kinds):
            return "model"
        if UPDATE.search(text):
            return "update"
        functions = " ".join(n.name for n in inside if isinstance(n, ast.FunctionDef))
        if LOSS.search(text) or LOSS.search(functions):
            return "loss"
        return "model" if re.search(r"nn\.|model =|network =", text) else "data"


def statements_of_loops(source: Source) -> Iterator[list[ast.stmt]]:
    """The bodies of loops that are not about evaluation."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.For | ast.While):
            yield [one for one in node.body if one in source.nodes]


def delete_statement(source: Source) -> Iterator[list[Edit]]:
    """A statement of a loop is missing."""
    for body in statements_of_loops(source):
        for one in body:
            if isinstance(one, ast.Expr | ast.AugAssign):
                yield [(one, "pass")]


def swap_statements(source: Source) -> Iterator[list[Edit]]:
    """Two statements of a loop are the wrong way round."""
    for body in statements_of_loops(source):
        for one, other in itertools.pairwise(body):
            if isinstance(one, ast.Expr | ast.Assign) and isinstance(other, ast.Expr | ast.Assign):
                yield [(one, source.segment(other)), (other, source.segment(one))]


def swap_arguments(source: Source) -> Iterator[list[Edit]]:
    """The first two arguments of a call are exchanged."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and len(node.args) >= 2
            and not any(isinstance(a, ast.Starred) for a in node.args)
        ):
            first, second = node.args[:2]
            yield [(first, source.segment(second)), (second, source.segment(first))]


def view_for_transpose(source: Source) -> Iterator[list[Edit]]:
    """The right shape, and the wrong order."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = source.segment(node.func.value)
            if node.func.attr in ("transpose", "permute", "movedim", "t"):
                yield [(node, f"{owner}.reshape({source.segment(node)}.shape)")]
            elif node.func.attr == "flatten":
                yield [
                    (node, f"{owner}.transpose(-1, -2).contiguous().flatten({', '.join(map(ast.unparse, node.args))})")
                ]
        elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
            yield [(node, f"{source.segment(node.value)}.reshape({source.segment(node)}.shape)")]


def axis(source: Source) -> Iterator[list[Edit]]:
    """Another axis."""
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        named = [k.value for k in node.keywords if k.arg in ("dim", "axis")]
        reduces = isinstance(node.func, ast.Attribute) and node.func.attr in (
            "mean",
            "sum",
            "std",
            "softmax",
            "argmax",
            "max",
        )
        for value in (*named, *(node.args[:1] if reduces else [])):
            if source.segment(value) in ("0", "1", "2", "-1"):
                yield [(value, {"0": "1", "1": "0", "2": "1", "-1": "0"}[source.segment(value)])]


def sign(source: Source) -> Iterator[list[Edit]]:
    """Plus for minus."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            other = "-" if isinstance(node.op, ast.Add) else "+"
            yield [(node, f"{source.segment(node.left)} {other} {source.segment(node.right)}")]
        elif (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and not isinstance(node.operand, ast.Constant)
        ):
            yield [(node, source.segment(node.operand))]


def constant(source: Source) -> Iterator[list[Edit]]:
    """A number a thousand times too large or too small."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and type(node.value) is float and node.value:
            for factor in (1e3, 1e-3):
                yield [(node, repr(float(f"{node.value * factor:.6g}")))]


def off_by_one(source: Source) -> Iterator[list[Edit]]:
    """A slice or an index that is one off."""
    for node in source.nodes:
        if isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                if bound is not None:
                    yield [(bound, f"{source.segment(bound)} + 1")]
                    yield [(bound, f"{source.segment(bound)} - 1")]


def drop_term(source: Source) -> Iterator[list[Edit]]:
    """A term or a factor is missing."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            yield [(node, f"({source.segment(node.left)})")]
            if not isinstance(node.op, ast.Div):
                yield [(node, f"({source.segment(node.right)})")]


def detach(source: Source) -> Iterator[list[Edit]]:
    """A value is cut off from its history."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call | ast.BinOp)
        ):
            yield [(node.value, f"({source.segment(node.value)}).detach()")]


def mask(source: Source) -> Iterator[list[Edit]]:
    """A condition the wrong way round."""
    opposite = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">"}
    for node in source.nodes:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in opposite:
            left, right = source.segment(node.left), source.segment(node.comparators[0])
            yield [(node, f"{left} {opposite[type(node.ops[0])]} {right}")]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            yield [(node, source.segment(node.operand))]


def wrong_variable(source: Source) -> Iterator[list[Edit]]:
    """Another variable of the same function."""
    for function in (node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)):
        stored = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        known = list(dict.fromkeys([*(a.arg for a in function.args.args if a.arg != "self"), *stored]))
        for node in ast.walk(function):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node not in source.nodes:
                continue
            if node.id in known:
                yield from ([(node, other)] for other in known if other != node.id)


def shuffle_one(source: Source) -> Iterator[list[Edit]]:
    """Examples and targets no longer belong together."""
    for node in source.nodes:
        is_call = isinstance(node, ast.Call) and len(node.args) == 2
        pair = node.args if is_call else node.elts if isinstance(node, ast.Tuple) and len(node.elts) == 2 else []  # type: ignore[attr-defined]
        is_pair = is_call or isinstance(source.parents.get(node), ast.Return)
        if is_pair and all(isinstance(one, ast.Name | ast.Call | ast.Subscript) for one in pair) and pair:
            name = source.segment(pair[1])
            yield [(pair[1], f"{name}[torch.randperm(len({name}))]")]


OPERATORS: tuple[Callable[[Source], Iterator[list[Edit]]], ...] = (
    delete_statement,
    swap_statements,
    swap_arguments,
    view_for_transpose,
    axis,
    sign,
    constant,
    off_by_one,
    drop_term,
    detach,
    mask,
    wrong_variable,
    shuffle_one,
)


def mutants(sources: list[Source], seed: int) -> Iterator[Mutant]:
    """All operators alike, then all scripts, then all places; none twice."""
    chance = random.Random(seed)
    sites = {op.__name__: {one.name: list(op(one)) for one in sources} for op in OPERATORS}
    by_name = {one.name: one for one in sources}
    while any(edits for scripts in sites.values() for edits in scripts.values()):
        operator = chance.choice([name for name, scripts in sites.items() if any(scripts.values())])
        script = chance.choice([name for name, edits in sites[operator].items() if edits])
        edits = sites[operator][script]
        edit = edits.pop(chance.randrange(len(edits)))
        source = by_name[script]
        text = source.edited(edit)
        if text is None:
            continue
        line = min(node.lineno for node, _ in edit)  # type: ignore[attr-defined]
        last = max(node.end_lineno for node, _ in edit)  # type: ignore[attr-defined]
        before = " | ".join(" ".join(source.segment(node).split()) for node, _ in edit)
        after = " | ".join(" ".join(new.split()) for _, new in edit)
        # Wherever it is written: inputs and targets are data, and how they are matched is, too.
        part = "data" if operator == shuffle_one.__name__ else source.part(line)
        yield Mutant(script, operator, line, last, before, after, text, part)


def run(text: str, name: str, seed: int = 0) -> tuple[str, bool]:
    """What a script prints, and whether it came to its end. In a fork, so torch is imported once."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.txt"
        child = os.fork()
        if not child:
            os.chdir(folder)
            with out.open("w", encoding="utf-8") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            signal.alarm(SECONDS)
            code = 1
            try:
                sys.argv = [f"{name}.py", "--seed", str(seed)]
                exec(compile(text, f"{name}.py", "exec"), {"__name__": "__main__", "__file__": f"{name}.py"})
                code = 0
            except BaseException as error:
                print("failed:", type(error).__name__, str(error)[:100])
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        return out.read_text(encoding="utf-8", errors="replace"), status == 0


def error_of(name: str, printed: str) -> float:
    """How far a run ended from the best that there is."""
    outcome = OUTCOMES[name]
    found = re.findall(outcome.pattern, printed)
    value = float(found[-1].replace(",", "").rstrip(".")) if found else math.nan
    return abs(value - outcome.best) if math.isfinite(value) else math.inf


def hurts(mutant: Mutant, usual: float) -> bool | None:
    """Does it end clearly worse than the original? None if it crashes."""
    printed, ended = run(mutant.source, mutant.script)
    if not ended:
        return None
    return error_of(mutant.script, printed) > WORSE * usual + OUTCOMES[mutant.script].margin


class Diagnosed(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    kind: str
    said: str
    seconds: float


def diagnosed(mutant: Mutant, source: Source, budget: str) -> Diagnosed:
    """What `unstuck diagnose` says of it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(mutant.source, encoding="utf-8")
        command = [sys.executable, "-m", "unstuck", "diagnose", "--json", "--quiet", "--budget", budget, "train.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - began
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        return Diagnosed(mutant, "nothing", (done.stderr.strip().splitlines() or ["no report"])[-1][:100], seconds)
    loud = [one for one in report["diagnoses"] if one["severity"] != "advice"]
    if not loud:
        ran = ", ".join(f"{one['name']} {one['verdict']}" for one in report["experiments"])
        return Diagnosed(mutant, "nothing", ran, seconds)
    first = next((one for one in loud if one["code"] == report.get("principal")), loud[0])
    return Diagnosed(mutant, kind_of(first, mutant, source), f"{first['code']} {first['message'][:100]}", seconds)


def kind_of(first: dict, mutant: Mutant, source: Source) -> str:
    """Is the first diagnosis about the changed line, or about its part?"""
    place = first.get("place") or {}
    line = place.get("line")
    if line is not None and mutant.line <= line <= mutant.last:
        return "cause"
    # What isolate cornered is the subject of P21, by the names of parts.
    parts = set(re.findall(r"\w+", str(first["subject"]["key"]))) & set(PARTS) if first["code"] == "P21" else set()
    parts |= PARTS_WITHOUT_A_LINE.get(first["code"], set())
    if not parts and line is not None:
        parts = {source.part(line)}
    return "cornered" if mutant.part in parts else "else"


def show(done: Diagnosed) -> None:
    """One row of the table."""
    mutant = done.mutant
    where = f"{mutant.script}:{mutant.line} {mutant.operator} ({mutant.part})"
    print(f"{done.kind:<9} {done.seconds:4.0f} s  {where}: {mutant.before[:60]} -> {mutant.after[:60]}")
    print(f"{'':18}{done.said}", flush=True)


def main() -> int:
    options = _options()
    import torch

    torch.set_num_threads(1)
    names = options.scripts or list(OUTCOMES)
    sources = [Source(HEALTHY / f"{name}.py") for name in names]
    by_name = {one.name: one for one in sources}
    if options.show:
        for mutant, _ in zip(mutants(sources, options.seed), range(options.count), strict=False):
            print(f"{mutant.script}:{mutant.line} {mutant.operator} ({mutant.part}): {mutant.before} -> {mutant.after}")
        return 0
    usual: dict[str, float] = {}
    counts: Counter[str] = Counter()
    found: list[Mutant] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting: list[concurrent.futures.Future[Diagnosed]] = []
        for mutant, _ in zip(mutants(sources, options.seed), range(TRIES * options.count), strict=False):
            if len(found) >= options.count:
                break
            if mutant.script not in usual:
                text = by_name[mutant.script].text
                usual[mutant.script] = max(
                    error_of(mutant.script, run(text, mutant.script, seed)[0]) for seed in (0, 1)
                )
            is_worse = hurts(mutant, usual[mutant.script])
            counts["crashes" if is_worse is None else "hurts" if is_worse else "does not hurt"] += 1
            if is_worse:
                found.append(mutant)
                waiting.append(pool.submit(diagnosed, mutant, by_name[mutant.script], options.budget))
                waiting[-1].add_done_callback(lambda one: show(one.result()))
        done = [one.result() for one in waiting]
    kinds = Counter(one.kind for one in done)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    for operator in OPERATORS:
        own = Counter(one.kind for one in done if one.mutant.operator == operator.__name__)
        if own:
            print(f"{operator.__name__:<20} {', '.join(f'{kind} {count}' for kind, count in own.items())}")
    right = kinds["cause"] + kinds["cornered"]
    print(
        f"{right} of {len(done)} that hurt: cause {kinds['cause']}, cornered {kinds['cornered']}; "
        f"else {kinds['else']}, nothing {kinds['nothing']}"
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="names of scripts, such as mlp")
    parser.add_argument("--count", type=int, default=30, help="mutants that hurt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print mutants, run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
