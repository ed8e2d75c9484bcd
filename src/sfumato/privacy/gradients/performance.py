"""How the gradients are computed. None of these settings can change the mechanism.

Every unit's vector is rounded to a grid and its norm is bounded after the rounding (``fixed_point``), whatever
arithmetic produced it. A coarser or faster arithmetic changes the vectors a little, and never how far one unit moves
the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_GIB = 1 << 30
_COMPILED_PASSES = 1000  # of a batch; compiling takes a minute or two


@dataclass(frozen=True)
class Performance:
    """Public settings of the gradient engine.

    Args:
        dtype: arithmetic of the matrix products; ``torch.bfloat16`` runs the loss under autocast.
        channels_last: memory format of image tensors; pays on a GPU with bfloat16.
        compile: compile the microbatch; pays on a GPU in a training of minutes. Where compiling fails, microbatches
            stay eager.
        memory: bytes that a microbatch may take. None: a quarter of the device's memory, at most 1 GiB on a CPU.
    """

    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    compile: bool = False
    memory: int | None = None

    @classmethod
    def for_training(cls, device: torch.device, *, bfloat16: bool, passes: int) -> Performance:
        """On a GPU bfloat16 and channels-last, compiled where a record is expected to pass often enough to pay for it.

        ``passes`` are steps times draws. On a CPU, where all of this is slower, float32 as it is.
        """
        if device.type != "cuda" or not bfloat16:
            return cls()
        return cls(dtype=torch.bfloat16, channels_last=True, compile=passes >= _COMPILED_PASSES)

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"the arithmetic is torch.float32 or torch.bfloat16, not {self.dtype}")
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"the memory of a microbatch is a positive number of bytes, not {self.memory}")

    def bytes(self, device: torch.device) -> int:
        """Bytes that a microbatch may take on this device: a property of the machine, not of the data."""
        if self.memory is not None:
            return self.memory
        if device.type == "cuda":
            return int(torch.cuda.get_device_properties(device).total_memory // 4)
        return _GIB

    def usual_units(self, device: torch.device) -> float:
        """The size of batch to prepare for where no public number says it."""
        return 4096.0 if device.type == "cuda" else 64.0

    def most_rows(self, device: torch.device) -> int:
        """Rows beyond which a larger microbatch is no faster."""
        return 16384 if device.type == "cuda" else 256
