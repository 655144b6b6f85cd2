"""Whether checkpoints are one network: numbers that no element of the group changes, and a comparison of weights."""
