"""Script text to script model: never imports the script, nor torch."""

from unstuck.source.documents.files import SourceError, find_files
from unstuck.source.reader.project import Project
from unstuck.source.script import Script, read_script

__all__ = ["Project", "Script", "SourceError", "find_files", "read_script"]
