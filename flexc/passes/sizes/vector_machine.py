"""What passes know of a CPU: its vector registers, and the panels that suit them.

Figures are fractions of the FMA peak reached by dense attention (fp32, head dim 64,
length 4,096) with the register tile in question, on two cores of Zen 5 and of Zen 3:

    512 bits, 32 registers   8 x 2: 83 %   12 x 2: 82 %   6 x 4: 82 %   24 x 1: 74 %
    256 bits, 16 registers   6 x 2: 84 %    4 x 2: 66 %   12 x 1: 72 %
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MachineName = Literal["avx512", "avx2", "neon", "portable"]


@dataclass(frozen=True)
class VectorMachine:
    """A CPU's vectors, and the block of a product that fits its registers.

    `register_rows` rows of `vectors` vectors each leave room for a vector of the left
    operand and a row of the right one.
    """

    name: MachineName
    vector_bytes: int
    register_rows: int
    vectors: int
    widens_half: bool = False
    """Whether an instruction widens a vector of fp16."""

    def lanes(self, bits: int) -> int:
        """Elements of a vector."""
        return self.vector_bytes * 8 // bits

    def panel(self, bits: int) -> int:
        """Columns of a panel: what one row of a register tile has."""
        return self.lanes(bits) * self.vectors


MACHINES: dict[MachineName, VectorMachine] = {
    machine.name: machine
    for machine in (
        VectorMachine("avx512", 64, 8, 2, widens_half=True),
        VectorMachine("avx2", 32, 6, 2, widens_half=True),
        VectorMachine("neon", 16, 6, 4),
        VectorMachine("portable", 16, 6, 2),
    )
}
