"""Every rule of this package passes the contract of unstuck's own rules."""

from rules_of_a_team import checkpoint_without_optimizer

from unstuck.testing import check_rule


def test_checkpoint_without_optimizer() -> None:
    check_rule(checkpoint_without_optimizer.rule)
