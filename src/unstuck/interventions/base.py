"""What every intervention is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


def _tag(name: str) -> str:
    """`ClipGradients` is `clip-gradients` in JSON."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


class Intervention(msgspec.Struct, frozen=True, tag_field="change", tag=_tag):
    """One change to a run of an unmodified script."""

    WORDS: ClassVar[str] = ""
    """What it does, for a report: half a sentence that goes on after `with`, such as `eps set to {0.value}`."""

    @property
    def words(self) -> str:
        """The same with its values; its tag if it has no words, since it is never a remedy."""
        return self.WORDS.format(self) or str(type(self).__struct_config__.tag)

    def apply(self, lab: Lab) -> None:
        """Change the program that runs in this process. Import torch in here, not at the top of the file.

        The default does nothing: some are carried out by whoever starts the program.
        """
