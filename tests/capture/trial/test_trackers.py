"""Trials send nothing to the user's trackers, even where the script itself names the server."""

from __future__ import annotations

import importlib
import json
import os
import socketserver
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from unstuck.capture.trial import trackers
from unstuck.interventions import StopAfter
from unstuck.trials.runner import Program, Runner, Variant

TRAINING = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 5:
        log(step, loss.item())
"""
"""`log` comes from what stands in front of it; a trial is ended in the last step."""


class Server:
    """Listens on loopback, answers as a server of HTTP, and counts who comes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        owner = self

        class Answer(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                owner.lines.append(self.rfile.readline(200).decode("latin-1").strip() or "a connection")
                self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def try_out(script: str) -> str:
    """What a script prints in a trial that takes 6 steps."""
    Path("train.py").write_text(script)
    with Runner(Program("train.py"), Path("trials"), jobs=1) as runner:
        [outcome] = runner.run([Variant("as-it-is", (StopAfter(steps=6),))], seconds=90)
    assert outcome.status == "stopped", outcome.output
    return outcome.output


def test_variables_reach_the_trial_and_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    script = """
        import json, os, subprocess, sys
        names = ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID", "COMET_START_ONLINE", "SWANLAB_MODE")
        own = {name: os.environ.get(name) for name in names}
        code = f"import json, os; print(json.dumps({{name: os.environ.get(name) for name in {names}}}))"
        child = json.loads(subprocess.check_output([sys.executable, "-c", code]))
        print("VARIABLES", json.dumps([own, child]))
        log = lambda *args: None
    """
    output = try_out(textwrap.dedent(script) + TRAINING)
    own, child = json.loads(output.partition("VARIABLES ")[2].splitlines()[0])
    assert own == child
    assert own == {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "mlruns",
        "TRACKIO_SPACE_ID": None,
        "COMET_START_ONLINE": "false",
        "SWANLAB_MODE": "offline",
    }


@pytest.mark.parametrize("uri", ["", "mlruns", "./runs", "file:///tmp/mlruns", "sqlite:///mlflow.db", "C:\\runs"])
def test_addresses_on_this_machine_stay(uri: str) -> None:
    assert trackers.environment({"MLFLOW_TRACKING_URI": uri})["MLFLOW_TRACKING_URI"] == uri


@pytest.mark.parametrize(
    "uri", ["http://localhost:5000", "HTTPS://x", "databricks", "postgresql://u@h/db", "uc:http://x"]
)
def test_addresses_of_servers_do_not(uri: str) -> None:
    assert trackers.environment({"MLFLOW_TRACKING_URI": uri})["MLFLOW_TRACKING_URI"] == "mlruns"


def test_a_sitecustomize_of_the_user_runs_too() -> None:
    Path("theirs").mkdir()
    Path("theirs/sitecustomize.py").write_text("import sys; sys.theirs = __name__, __file__")
    variables = trackers.environment({**os.environ, "PYTHONPATH": "theirs"})
    code = "import sys, sitecustomize; print(*sys.theirs, sitecustomize.__file__)"
    printed = subprocess.check_output([sys.executable, "-c", code], env=variables, text=True).split()
    theirs = str(Path("theirs/sitecustomize.py").absolute())
    assert printed == ["sitecustomize", theirs, theirs]


def test_a_version_that_cannot_be_kept_offline_cannot_be_imported() -> None:
    Path("wandb.py").write_text("def start(): pass\n")
    code = "import wandb"
    done = subprocess.run(
        [sys.executable, "-c", code], env=trackers.environment(os.environ), capture_output=True, text=True
    )
    assert "ImportError: unstuck cannot keep this version of wandb offline" in done.stderr


READS = ("GET /api/whoami-v2 HTTP/1.1",)
"""What trackio asks the Hub about its user; models and data are downloaded in trials as always."""
CLIENTS: dict[str, tuple[str, str]] = {
    "wandb": (
        "wandb",
        """
        import os
        os.environ["WANDB_MODE"] = "online"
        import wandb
        wandb.login(key="0123456789" * 4, host=URL)
        run = wandb.init(project="p", mode="online", settings=wandb.Settings(base_url=URL, init_timeout=15))
        def log(step, loss):
            run.log({"loss": loss})
        """,
    ),
    "mlflow": (
        "mlflow",
        """
        import mlflow
        mlflow.set_tracking_uri(URL)
        mlflow.set_experiment("e")
        mlflow.start_run()
        other = mlflow.MlflowClient(tracking_uri=URL)
        other.log_metric(other.create_run("0").info.run_id, "other", 1.0)
        def log(step, loss):
            mlflow.log_metric("loss", loss, step)
        """,
    ),
    "mlflow by variable": (
        "mlflow",
        """
        import os
        import mlflow
        os.environ["MLFLOW_TRACKING_URI"] = URL
        def log(step, loss):
            mlflow.log_metric("loss", loss, step)
        """,
    ),
    "comet": (
        "comet_ml",
        """
        import comet_ml
        comet_ml.login(api_key="k" * 25)
        experiment = comet_ml.Experiment(api_key="k" * 25, project_name="p", workspace="w")
        def log(step, loss):
            experiment.log_metric("loss", loss, step=step)
        """,
    ),
    "comet start": (
        "comet_ml",
        """
        import comet_ml
        experiment = comet_ml.start(api_key="k" * 25, project_name="p", workspace="w", online=True)
        def log(step, loss):
            experiment.log_metric("loss", loss, step=step)
        """,
    ),
    "neptune": (
        "neptune",
        """
        import base64, json
        import neptune
        token = base64.b64encode(json.dumps({"api_address": URL, "api_url": URL, "api_key": "k"}).encode()).decode()
        run = neptune.init_run(project="w/p", api_token=token, mode="async")
        def log(step, loss):
            run["loss"].append(loss)
        """,
    ),
    "clearml": (
        "clearml",
        """
        import os
        os.environ["CLEARML_OFFLINE_MODE"] = "0"
        from clearml import Task
        Task.set_credentials(api_host=URL, web_host=URL, files_host=URL, key="k", secret="s")
        Task.set_offline(False)
        task = Task.init(project_name="p", task_name="t", auto_connect_frameworks=False)
        def log(step, loss):
            task.get_logger().report_scalar("loss", "train", loss, step)
        """,
    ),
    "aim": (
        "aim",
        """
        import aim
        run = aim.Run(repo=URL.replace("http", "aim"), system_tracking_interval=None)
        def log(step, loss):
            run.track(loss, name="loss", step=step)
        """,
    ),
    "trackio": (
        "trackio",
        """
        import trackio
        trackio.init(project="p", server_url=URL + "/?write_token=t", webhook_url=URL)
        def log(step, loss):
            trackio.log({"loss": loss})
        """,
    ),
    "trackio space": (
        "trackio",
        """
        import trackio
        trackio.init(project="p", space_id="me/space")
        def log(step, loss):
            trackio.log({"loss": loss})
        """,
    ),
    "swanlab": (
        "swanlab",
        """
        import os
        os.environ["SWANLAB_MODE"] = "online"
        import swanlab
        swanlab.login(api_key="k" * 21, host=URL)
        swanlab.init(project="p", mode="online")
        def log(step, loss):
            swanlab.log({"loss": loss})
        """,
    ),
    "dvclive": (
        "dvclive",
        """
        import os, subprocess
        os.environ["DVC_STUDIO_OFFLINE"] = "false"
        for command in ("git init -q .", "git -c user.name=a -c user.email=b commit -q --allow-empty -m c"):
            subprocess.run(command.split(), check=True)
        subprocess.run([__import__("sys").executable, "-m", "dvc", "init", "-q"], check=True)
        from dvclive import Live
        live = Live()
        def log(step, loss):
            live.log_metric("loss", loss)
            live.next_step()
        """,
    ),
    "hub": (
        "huggingface_hub",
        """
        import huggingface_hub
        from huggingface_hub import HfApi, upload_file
        api = HfApi(endpoint=URL, token="hf_x")
        print("AT", api.create_repo("me/model", exist_ok=True).repo_id)
        upload_file(path_or_fileobj=b"weights", path_in_repo="model.bin", repo_id="me/model")
        def log(step, loss):
            api.upload_folder(repo_id="me/model", folder_path=".", run_as_future=True).result()
            api.create_commit("me/model", [], commit_message="m")
        """,
    ),
}


def script_for(client: str, url: str) -> str:
    return f"URL = {url!r}\n" + textwrap.dedent(CLIENTS[client][1]) + TRAINING


def credentials(server: Server) -> dict[str, str]:
    """What the environment of a user may say."""
    return {
        "WANDB_API_KEY": "0123456789" * 4,
        "WANDB_BASE_URL": server.url,
        "MLFLOW_TRACKING_URI": server.url,
        "COMET_API_KEY": "k" * 25,
        "COMET_URL_OVERRIDE": server.url + "/clientlib/",
        "NEPTUNE_API_TOKEN": "x",
        "CLEARML_API_HOST": server.url,
        "CLEARML_API_ACCESS_KEY": "k",
        "CLEARML_API_SECRET_KEY": "s",
        "SWANLAB_API_KEY": "k" * 21,
        "SWANLAB_API_HOST": server.url,
        "DVC_STUDIO_TOKEN": "isat_x",
        "DVC_STUDIO_URL": server.url,
        "DVC_STUDIO_REPO_URL": "git@example.org:me/project",
        "HF_TOKEN": "hf_x",
        "HF_ENDPOINT": server.url,
    }


def installed(client: str) -> None:
    try:
        importlib.import_module(CLIENTS[client][0])
    except ImportError:
        pytest.skip(f"{CLIENTS[client][0]} is not installed")


@pytest.mark.parametrize("client", CLIENTS)
def test_nothing_is_sent(client: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(client)
    for name, value in credentials(server).items():
        monkeypatch.setenv(name, value)
    try_out(script_for(client, server.url))
    assert [line for line in server.lines if line not in READS] == []


@pytest.mark.parametrize("client", ["mlflow", "wandb", "hub"])
def test_nothing_is_sent_by_a_process_that_the_script_starts(
    client: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(client)
    for name, value in credentials(server).items():
        monkeypatch.setenv(name, value)
    Path("child.py").write_text(script_for(client, server.url))
    start = "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\nlog = print\n"
    try_out(start + TRAINING)
    assert server.lines == []


@pytest.mark.slow
def test_a_server_of_mlflow_receives_nothing_from_diagnose(server: Server) -> None:
    installed("mlflow")
    Path("train.py").write_text(script_for("mlflow", server.url))
    command = [sys.executable, "-m", "unstuck", "diagnose", "--budget", "20s", "train.py"]
    done = subprocess.run(
        command, env={**os.environ, **credentials(server)}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode in (0, 1), done.stderr
    assert server.lines == []
    assert not Path("mlruns").exists()


def shown(arguments: Sequence[str]) -> None:
    """`python -m tests.experiments.test_trackers CLIENT...`: what the server receives from a script run as it is."""
    for client in arguments or CLIENTS:
        server = Server()
        done = subprocess.run(
            [sys.executable, "-c", script_for(client, server.url)],
            env={**os.environ, **credentials(server)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        print(client, len(server.lines), server.lines[:2], done.stderr[-200:] if not server.lines else "")
        server.close()


if __name__ == "__main__":
    shown(sys.argv[1:])
