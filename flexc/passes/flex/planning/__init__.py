"""Kernels that plan block-sparse masks: written once, in tile ops, for all targets.

    summarize     the least and greatest captured values of blocks of rows or columns
    list_rows     tables of the live blocks of rows, from captured values
    list_blocks   tables of the live blocks, from the classes that summaries prove
    classify      the class of each block of pairs: dead, partial, full or unknown
    sample        a few pairs of each unknown block (on a CPU)
    refine        all pairs of each unknown block
    order         torch's tables, from classes in memory; the same for all masks

`convert-flex-to-planning` builds the kernels from a mask region and its classifier.
"""
