"""Kernels that plan block-sparse masks: written once, in tile ops, for all targets.

    summarize   per block of rows or columns, least and greatest captured values
    classify    per block of pairs: dead, partial, full or unknown
    sample      on a CPU: a few pairs of each unknown block
    refine      unknown blocks, pair by pair

`convert-flex-to-planning` builds them from a mask region and its classifier.
"""
