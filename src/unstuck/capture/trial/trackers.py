"""Keeps experiment trackers offline in trials: nobody's dashboard is to fill with runs that `diagnose` has made.

Variables come first: every tracker documents some, and child processes inherit them. A script can still name a server
in its own code, so what asks for one there is changed when the tracker is imported: in trials only, never in a run.

Needs nothing but the standard library, and nothing of this package: `startup/sitecustomize.py` loads this file by its
path in every python that a trial starts, whatever else is installed there.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

Change = Callable[[ModuleType], object]
STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""The folder whose `sitecustomize` python runs when it starts, if it is on PYTHONPATH."""
LOCAL = ("", "file", "sqlite")
"""Schemes of addresses on this machine."""
HERE = "mlruns"
"""Where MLflow writes instead: a folder of the trial."""


class Tracker(NamedTuple):
    """How one tracker is kept offline."""

    variables: Mapping[str, str] = {}
    """What its documentation names for that, whatever the user's own environment says."""
    servers: Mapping[str, str | None] = {}
    """Variables that may name a server, and what they name in a trial instead; None if they are not to be there."""
    changes: Mapping[str, Change] = {}
    """By module: what is changed there when it has been imported."""


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The variables of a trial, for a user whose own they are: trackers offline, in child processes too."""
    changed = dict(own)
    for tracker in TRACKERS.values():
        changed |= tracker.variables
        for name, value in tracker.servers.items():
            if value is None:
                changed.pop(name, None)
            elif not is_local(own.get(name, "")):
                changed[name] = value
    paths = [os.path.abspath(part) for part in own.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**changed, "PYTHONPATH": os.pathsep.join([STARTUP, *paths])}


def keep_offline() -> None:
    """From now on, change trackers when they are imported in this process and those forked from it."""
    changes = {module: change for tracker in TRACKERS.values() for module, change in tracker.changes.items()}
    sys.meta_path.insert(0, _Finder(changes))


def is_local(address: str) -> bool:
    """Does the address name a place on this machine?"""
    scheme = re.match(r"([a-z][\w.+-]+):", address, re.I)  # one letter is a drive
    return (scheme[1].lower() if scheme else "") in LOCAL and address not in ("databricks", "databricks-uc", "uc")


class _Finder:
    """Finds modules as the others do, and has some changed once they have been loaded."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self._changes.get(name)
        if change is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            _then(spec.loader, "exec_module", change)
        return spec


def _then(loader: Any, name: str, change: Change) -> None:
    original = getattr(loader, name)

    @functools.wraps(original)
    def exec_module(module: ModuleType) -> None:
        original(module)
        try:
            change(module)
        except Exception as error:  # better no tracker than one that sends
            raise ImportError(f"unstuck cannot keep this version of {module.__name__} offline ({error!r})") from error

    setattr(loader, name, exec_module)


# --- what is changed ---------------------------------------------------------------------------------------------


def _force(owner: Any, name: str, **values: Callable[[Any], Any]) -> None:
    """Have a function called with other values for some of its arguments, made of those that it was given."""
    import inspect  # every python that a trial starts loads this file, and few of them a tracker

    original = getattr(owner, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forced(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(*args, **kwargs)
        for argument, value in values.items():
            if argument in signature.parameters:
                bound.arguments[argument] = value(bound.arguments.get(argument))
        return original(*bound.args, **bound.kwargs)

    setattr(owner, name, forced)


def _silence(owner: Any, *names: str, result: Any = None) -> None:
    """Have functions do nothing, as far as they exist."""
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, lambda *args, **kwargs: result)


def _offline(mode: Any) -> str:
    return "disabled" if mode == "disabled" else "offline"


def _wandb(module: Any) -> None:
    _force(module, "init", mode=_offline)
    _silence(module, "login", result=True)
    _silence(module, "sweep", result="offline")
    # An agent asks the server for a configuration; without one the function has its defaults.
    module.agent = lambda sweep_id, function=None, *args, **kwargs: function() if function else None


def _local(address: Any) -> Any:
    return address if address is None or is_local(str(address)) else HERE


def _mlflow(module: Any) -> None:
    _force(module, "set_tracking_uri", uri=_local)
    for name in ("get_tracking_uri", "_resolve_tracking_uri"):
        setattr(module, name, _with_result(getattr(module, name), _local))


def _mlflow_requests(module: Any) -> None:
    original = module.http_request

    @functools.wraps(original)
    def http_request(host_creds: Any, endpoint: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "GET":
            raise ConnectionError(f"unstuck keeps MLflow offline in a trial: {method} {endpoint} was not sent")
        return original(host_creds, endpoint, method, *args, **kwargs)

    module.http_request = http_request


def _with_result(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(function(*args, **kwargs))

    return changed


def _comet(module: Any) -> None:
    module.Experiment = _offline_experiment(module.OfflineExperiment)
    module.ExistingExperiment = _offline_experiment(module.ExistingOfflineExperiment)
    if hasattr(module, "start"):
        _force(module, "start", online=lambda online: False)
    _silence(module, "login", "init", "init_onprem")


def _offline_experiment(offline: type) -> type:
    import inspect

    parameters = inspect.signature(offline.__init__).parameters  # type: ignore[misc]

    class Experiment(offline):  # type: ignore[misc]
        """Takes what an experiment of the server takes: first of all a key."""

        def __init__(self, api_key: Any = None, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{name: value for name, value in kwargs.items() if name in parameters})

    return Experiment


def _neptune(module: Any) -> None:
    # `debug` keeps nothing at all, and knows what `offline` refuses: models, and runs that exist already.
    for name in ("Run", "Model", "ModelVersion", "Project"):
        _force(getattr(module, name), "__init__", mode=lambda mode: "debug")


def _neptune_scale(module: Any) -> None:
    _force(module.Run, "__init__", mode=_offline)


def _clearml(module: Any) -> None:
    for name in ("Task", "Dataset"):
        owner = getattr(module, name)
        owner.set_offline(True)  # the script may have changed the variable
        owner.set_offline = staticmethod(lambda *args, **kwargs: None)


def _aim(module: Any) -> None:
    original = module.Repo.__init__

    @functools.wraps(original)
    def init(repo: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        if not is_local(str(path)):
            path, kwargs["init"] = os.getcwd(), True
        original(repo, path, *args, **kwargs)

    module.Repo.__init__ = init


TRACKIO_SERVERS = {
    "space_id": "TRACKIO_SPACE_ID",
    "server_url": "TRACKIO_SERVER_URL",
    "dataset_id": "TRACKIO_DATASET_ID",
    "bucket_id": "TRACKIO_BUCKET_ID",
    "webhook_url": "TRACKIO_WEBHOOK_URL",
}
"""Arguments, and the variables that stand for them."""


def _no_server(value: Any) -> None:
    for name in TRACKIO_SERVERS.values():  # the script may have set them
        os.environ.pop(name, None)


def _trackio(module: Any) -> None:
    _force(module, "init", **dict.fromkeys(TRACKIO_SERVERS, _no_server))
    _silence(module, "sync", "freeze", "deploy_as_space")


def _swanlab(module: Any) -> None:
    _force(module, "init", mode=_offline)
    _silence(module, "login", result=True)


def _studio(module: Any) -> None:
    _force(module, "get_studio_config", offline=lambda offline: True)


HUB_READS = re.compile(
    r"_|(get|list|fetch|search|inspect|wait|parse|verify|resolve|read|download|snapshot|hf_hub|run_as_future|whoami"
    r"|auth_check)|\w+_(info|exists|tags)$"
)
"""What a client of the Hub may go on doing: a trial needs the models and data that the script downloads."""


def _hub(module: Any) -> None:
    for name, method in list(vars(module.HfApi).items()):
        if isinstance(method, FunctionType) and not HUB_READS.match(name):
            setattr(module.HfApi, name, _not_sent(module, name))
            if hasattr(module, name):
                setattr(module, name, getattr(module.api, name))


def _not_sent(module: Any, name: str) -> Callable[..., Any]:
    """In place of what writes to the Hub: an answer of the right kind, and nothing is sent."""

    def method(api: Any, *args: Any, run_as_future: bool = False, **kwargs: Any) -> Any:
        repository = f"{api.endpoint}/{kwargs.get('repo_id') or (args or ['unstuck/trial'])[0]}"
        answer = None
        if name in ("create_repo", "duplicate_repo", "duplicate_space"):
            answer = module.RepoUrl(repository)
        elif name.startswith(("create_commit", "upload_", "delete_f")):
            page = f"{api.endpoint}/unstuck/trial/commit/0"
            answer = module.CommitInfo(commit_url=page, commit_message="", commit_description="", oid="0" * 40)
        return _future(answer) if run_as_future else answer

    method.__name__ = name
    return method


def _future(answer: Any) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_result(answer)
    return future


def _hub_repository(module: Any) -> None:
    _silence(module.Repository, "git_push", "push_to_hub")


TRACKERS = {
    "Weights & Biases": Tracker(
        variables={
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "WEAVE_DISABLED": "true",
        },
        changes={"wandb": _wandb},
    ),
    "MLflow": Tracker(
        variables={"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"},
        servers={"MLFLOW_TRACKING_URI": HERE},
        changes={"mlflow.tracking._tracking_service.utils": _mlflow, "mlflow.utils.rest_utils": _mlflow_requests},
    ),
    "Comet": Tracker(
        variables={"COMET_MODE": "offline", "COMET_START_ONLINE": "false", "COMET_ERROR_TRACKING_ENABLE": "false"},
        changes={"comet_ml": _comet},
    ),
    "Neptune": Tracker(
        variables={"NEPTUNE_MODE": "offline"}, changes={"neptune": _neptune, "neptune_scale": _neptune_scale}
    ),
    "ClearML": Tracker(variables={"CLEARML_OFFLINE_MODE": "1"}, changes={"clearml": _clearml}),
    "Aim": Tracker(changes={"aim.sdk.repo": _aim}),
    "Trackio": Tracker(
        variables={"TRACKIO_DIR": ".trackio"},
        servers=dict.fromkeys(TRACKIO_SERVERS.values()),
        changes={"trackio": _trackio},
    ),
    "SwanLab": Tracker(variables={"SWANLAB_MODE": "offline"}, changes={"swanlab": _swanlab}),
    "DVCLive": Tracker(
        variables={"DVC_STUDIO_OFFLINE": "true", "DVC_EXP_AUTO_PUSH": "false", "DVC_NO_ANALYTICS": "true"},
        changes={"dvc_studio_client.config": _studio},
    ),
    "Hugging Face Hub": Tracker(
        variables={"HF_HUB_DISABLE_TELEMETRY": "1"},
        changes={"huggingface_hub.hf_api": _hub, "huggingface_hub.repository": _hub_repository},
    ),
}
"""TensorBoard is not here: it writes files, which stay in the trial like all others."""
