"""Attention as operators of torch, which its compilers record and take apart."""
