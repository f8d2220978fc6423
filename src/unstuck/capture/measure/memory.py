"""A few numbers of a tensor, read where they are in memory.

In the middle of a training an operation of torch takes ten microseconds or more, as its code has left the caches;
reading a kilobyte takes one.
"""

from __future__ import annotations

from ctypes import c_char

import torch
from torch import Tensor


class Glimpse:
    """The middle of a dense tensor on the CPU, as it is whenever it is read. The edges may be dark: weights of pixels
    that are black in every image never move."""

    __slots__ = ("_bytes", "_pointer", "_view")

    def __init__(self, tensor: Tensor, most: int) -> None:
        size = min(tensor.numel(), most)
        offset = tensor.storage_offset() + (tensor.numel() - size) // 2
        self._view = tensor.detach().as_strided((size,), (1,), offset)
        self._pointer = self._view.data_ptr()
        self._bytes = (c_char * (size * tensor.element_size())).from_address(self._pointer)

    def read(self) -> bytes:
        """What is there now; nothing if the memory has been given back, as sharded models do."""
        return self._bytes.raw if self._view.data_ptr() == self._pointer else b""

    def numbers(self, read: bytes) -> Tensor:
        """What was read, as it was then."""
        return torch.frombuffer(bytearray(read), dtype=self._view.dtype).double()
