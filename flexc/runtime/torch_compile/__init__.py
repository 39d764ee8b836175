"""Attention in graphs of torch.compile."""
