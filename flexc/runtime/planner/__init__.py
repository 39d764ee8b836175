"""Planning of block-sparse masks at run time: which blocks are dead, partial, full.

`plans` compiles a mask's kernels once per code; `classes` runs them; `compaction`
turns classes into the tables that attention reads; `block_mask` is torch's
`create_block_mask` on top of that, `tables` what `flex_attention` plans for itself.
"""

from flexc.runtime.notes import made_by_flexc
from flexc.runtime.planner.block_mask import create_block_mask
from flexc.runtime.planner.tables import plan_tables

__all__ = ["create_block_mask", "made_by_flexc", "plan_tables"]
