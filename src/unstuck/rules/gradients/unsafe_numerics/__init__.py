"""G15: a formula on the way to the loss whose value or gradient can become infinite or NaN."""

from __future__ import annotations

from unstuck.events import Backward
from unstuck.findings import Severity, Variant
from unstuck.rule import Rule, find_in


class Formula(Variant):
    """The formula that is not safe."""

    LOG_SOFTMAX = "log-softmax", "log(softmax(x)) instead of log_softmax(x)"
    LOG_SIGMOID = "log-sigmoid", "log(sigmoid(x)) or log(1 - sigmoid(x)) instead of logsigmoid"
    SOFTPLUS = "softplus", "log(1 + exp(x)) instead of softplus(x)"
    LOG_SUM_EXP = "log-sum-exp", "log(sum(exp(x))) instead of logsumexp(x)"
    SOFTMAX = "softmax", "exp(x) / sum(exp(x)) instead of softmax(x)"
    ROOT = "root", "a square root that can reach 0, where its slope is infinite"
    ARC_COSINE = "arc-cosine", "acos or asin of a cosine that can reach 1 or -1"
    ZERO_NORM = "zero-norm", "a row divided by its own norm, which can be 0"
    LATE_GUARD = "late-guard", "where() around a value whose gradient is still infinite"
    AT_EDGE = "at-edge", "an operation that reached an edge in the run"


rule = Rule(
    code="G15",
    name="unsafe-numerics",
    title="log, sqrt, exp, division or acos in the loss that can become infinite or NaN",
    severity=Severity.WARNING,
    explains=("G10", "G08", "O24"),
    needs=(Backward,),
    only_in_text=("call",),
    variants=Formula.titles(),
)

rule.in_source(find_in("unstuck.rules.gradients.unsafe_numerics.source"))
rule.in_run(find_in("unstuck.rules.gradients.unsafe_numerics.run"))
