"""Planning of block-sparse masks at run time: the dead, partial and full blocks.

`plans` compiles the kernels of a mask once for its code, and runs them. `tables` turns
classes into the tables that attention reads, and makes those that `flex_attention`
plans for itself. `block_mask` implements torch's `create_block_mask`.
"""
