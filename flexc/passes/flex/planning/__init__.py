"""Kernels that plan block-sparse masks: written once, in tile ops, for all targets.

    summarize   the least and greatest captured values of each block of rows or columns
    classify    the class of each block of pairs: dead, partial, full or unknown
    sample      a few pairs of each unknown block (on a CPU)
    refine      all pairs of each unknown block

`convert-flex-to-planning` builds the kernels from a mask region and its classifier.
"""
