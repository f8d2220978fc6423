"""A model of ours in place of the script's: same inputs, outputs of the same shape, trained by an Adam of its own.

A quarter of the examples, chosen by what is in them, never train it. What it is worth is judged by its answers to
those, so that examples which are seen again and again cannot be memorized.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.detect.graph import operation, softmax_axis
from unstuck.capture.trial.lab import Lab
from unstuck.capture.trial.stand_ins.adam import Adam
from unstuck.capture.trial.stand_ins.boundary import Call, Compared, boundary_of
from unstuck.capture.trial.stand_ins.fitting import Fit
from unstuck.capture.trial.stand_ins.networks import Network, main_of

HELD_OUT = 0.25
FEWEST_DIFFERENT = 24
"""Examples of a batch, or of all so far: where there are fewer, as in a truth table, memorizing them is learning."""
MOST_KNOWN = 4096


class Instead(torch.autograd.Function):
    """The second of two outputs; the first gets a gradient of 0, so that its parameters still have one."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ours: Tensor) -> Tensor:
        return ours.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(gradient), gradient


class StandInModel:
    """One network for each model and shape of output."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._boundary = boundary_of(lab)
        self._adam = Adam()
        self._networks: dict[tuple[Any, ...], Network | None] = {}
        self._known: set[float] = set()
        self._held: dict[int, Tensor] = {}
        self._losses: dict[int, str] = {}
        self._notes = lab.notes["model"] = {
            "swapped": 0,
            "why": "none was called with gradients",
            "held_out": 0,
            "partial": False,
        }
        self._boundary.outputs.append(self._instead)
        self._boundary.compared.append(self._compared)
        self._boundary.rows = self._rows
        lab.after_steps(self._step)
        lab.when_step_ends.append(self._held.clear)

    def _instead(self, call: Call, own: Tensor) -> Tensor:
        inputs = [tensor for _, tensor in call.inputs]
        if not inputs or not own.is_floating_point():
            self._notes["why"] = (
                "the model is given no tensor" if not inputs else "it returns no floating-point numbers"
            )
            return own
        network = self._network(call, inputs, own)
        if network is None:
            return own
        with self._boundary.ours(), torch.autocast(own.device.type, enabled=False):
            made = self._as_it_ends(call, own, network(inputs, own.shape)).to(own.dtype)
        rows = self._rows_held(inputs[main_of(inputs)])
        if rows is not None and len(rows) == len(own):
            self._held[id(call)] = rows
            made = torch.where(rows.reshape(-1, *[1] * (made.dim() - 1)), made.detach(), made)
        elif rows is not None and len(own) % len(rows) == 0:
            self._held[id(call)] = rows = rows.repeat_interleave(len(own) // len(rows))
            made = torch.where(rows.reshape(-1, *[1] * (made.dim() - 1)), made.detach(), made)
        self._notes |= {"swapped": self._notes["swapped"] + 1, "why": ""}
        self._notes["partial"] = self._notes["partial"] or call.is_partial
        result: Tensor = Instead.apply(own, made)  # type: ignore[no-untyped-call]
        return result

    def _compared(self, compared: Compared) -> None:
        self._losses[id(compared.call.module)] = compared.loss

    def _as_it_ends(self, call: Call, own: Tensor, made: Tensor) -> Tensor:
        """Probabilities, if the script's model gives these; unless the loss makes them of scores itself."""
        node: Any = own.grad_fn
        last, loss = operation(node) if node is not None else "", self._losses.get(id(call.module), "")
        axis = softmax_axis(node)
        if last == "Sigmoid" and loss != "binary_cross_entropy_with_logits":
            return made.sigmoid()
        if axis is not None and last == "LogSoftmax":
            return made.log_softmax(axis)
        return made.softmax(axis) if axis is not None and loss != "cross_entropy" else made

    def _network(self, call: Call, inputs: list[Tensor], own: Tensor) -> Network | None:
        key = (id(call.module), len(inputs), own.dim(), *(t.dim() for t in inputs))
        if key not in self._networks:
            devices = [own.device.index or 0] if own.device.type == "cuda" else []
            try:
                with self._boundary.ours(), torch.random.fork_rng(devices=devices), torch.no_grad():
                    torch.manual_seed(torch.initial_seed() % 2**31 + 17)
                    network: Network | None = Network(inputs, own.shape).to(own.device)
            except (ValueError, RuntimeError) as error:
                self._notes["why"] = str(error).splitlines()[0]
                network = None
            self._networks[key] = network
        return self._networks[key]

    def _rows_held(self, main: Tensor) -> Tensor | None:
        """Which examples never train it: the same ones whenever they come."""
        with torch.no_grad():
            table = main.detach().reshape(len(main), -1).cpu().double()  # some devices have no double
            places = torch.arange(1, table.shape[1] + 1, dtype=torch.float64)
            marks = (torch.nan_to_num(table) * torch.sin(12.9898 * places)).sum(1)
            if len(self._known) < MOST_KNOWN:
                self._known |= set(marks.tolist())
            if len(self._known) < FEWEST_DIFFERENT:
                return None
            return (torch.frac(marks.abs() * 437.5853) < HELD_OUT).to(main.device)

    def _rows(self, compared: Compared, found: Fit) -> Tensor | None:
        """Of what is compared, the rows that never train it."""
        held = self._held.get(id(compared.call))
        if held is None:
            return None
        count = len(found.target) if found.counted is None else len(found.counted)
        if count % len(held):
            return torch.zeros(len(found.target), dtype=torch.bool, device=held.device)
        self._notes["held_out"] += 1
        rows = held.repeat_interleave(count // len(held))
        return rows if found.counted is None else rows[found.counted]

    def _step(self, optimizer: Optimizer) -> None:
        networks = [network for network in self._networks.values() if network is not None]
        parameters = [p for network in networks for p in network.parameters() if p.grad is not None]
        self._adam.step([(p, p.detach(), p.grad) for p in parameters if p.grad is not None])
        for parameter in parameters:
            parameter.grad = None
