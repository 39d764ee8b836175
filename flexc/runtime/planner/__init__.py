"""Planning of block-sparse masks at run time: the dead, partial and full blocks.

`plans` compiles the kernels of a mask once for its code, and runs them. `ordering`
turns classes into the tables that attention reads. `block_mask` implements torch's
`create_block_mask`, and `tables` makes the tables that `flex_attention` plans for
itself.
"""
