"""The parts of `tile-specialize-warps`, in the order in which the pass uses them.

`loads` finds the loads that become copies to shared memory. `resources` assigns slots
and barriers to the copies, and checks that slots, shared memory and registers suffice.
`slices` finds the code that a role needs. `roles` writes the code of a role, `services`
that of roles of one warp.
"""
