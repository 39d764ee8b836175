"""The parts of `tile-specialize-warps`, in the order in which it uses them.

`loads` finds what is copied to shared memory, `rings` gives it slots and barriers,
`outputs` finds what leaves through them. `slices` says what a role needs of the
program; `copying` copies that, which `producer` and `consumer` complete. `occupancy`
checks that nobody waits forever, `limits` and `registers` that the hardware has room,
`scalars` moves what only one role uses into it.
"""
