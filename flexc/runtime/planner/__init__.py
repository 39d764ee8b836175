"""Planning of block-sparse masks at run time: which blocks are dead, partial, full.

`plans` compiles a mask's kernels once per code; `classes` runs them; `compaction`
turns classes into the tables that attention reads; `block_mask` is torch's
`create_block_mask` on top of that, `tables` what `flex_attention` plans for itself.
"""
