"""Where a mod reads captured tensors: how the indices of each read vary."""
