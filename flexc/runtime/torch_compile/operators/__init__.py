"""Attention as operators of torch, which its compilers trace and decompose."""
