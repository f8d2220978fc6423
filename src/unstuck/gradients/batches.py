"""A loader whose batches know whether they are the last of their epoch, and how many examples they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Generic, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from unstuck.gradients.errors import MisuseError

Batch = TypeVar("Batch")


class Batches(Generic[Batch]):
    """What `manager.batches(loader)` returns: the loader's batches, once each, in its order."""

    def __init__(self, loader: Iterable[Batch], epoch: Callable[[Iterable[Batch]], Iterator[Batch]]) -> None:
        self.loader = loader
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        return self._epoch(self.loader)

    def __len__(self) -> int:
        if isinstance(self.loader, Sized):
            return len(self.loader)
        raise TypeError(f"{type(self.loader).__name__} does not say how many batches it has.")


def marked(loader: Iterable[Batch], look_ahead: bool) -> Iterator[tuple[Batch, bool, int | None]]:
    """Each batch, whether it is known to be the last, and its number of examples where the loader knows it."""
    source: Iterable[Batch] = loader
    while isinstance(source, Batches):  # one manager's batches may go through another's
        source = source.loader
    total = _length(source)
    if look_ahead and total is None and source is not loader:
        raise MisuseError("Two managers can share a loop only over a loader of known length, such as a list.")
    sizes = _sizes(source) if isinstance(source, DataLoader) and total is not None else None
    walk = _looking_ahead(loader) if look_ahead and total is None else _counting(loader, total)
    for index, (batch, last) in enumerate(walk, 1):
        yield batch, last, sizes and (sizes[1] if index == total else sizes[0])


def _counting(loader: Iterable[Batch], total: int | None) -> Iterator[tuple[Batch, bool]]:
    for index, batch in enumerate(loader, 1):
        yield batch, index == total


def _looking_ahead(loader: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """A stream of unknown length: a batch is handed out when the next one is there, or is known not to come."""
    batches = iter(loader)
    for held in batches:
        for following in batches:
            yield held, False
            held = following
        yield held, True


def _length(loader: Iterable[Batch]) -> int | None:
    """The number of batches, of loaders that can be believed."""
    if isinstance(loader, DataLoader):
        return None if isinstance(loader.dataset, IterableDataset) else len(loader)
    return len(loader) if isinstance(loader, list | tuple | range) else None


def _sizes(loader: DataLoader[Batch]) -> tuple[int, int] | None:
    """Examples in an ordinary batch and in the last one."""
    if loader.batch_size is None or not isinstance(loader.sampler, Sized):
        return None
    usual = loader.batch_size
    return usual, usual if loader.drop_last else len(loader.sampler) - usual * (len(loader) - 1)
