"""What a reader of a zoo uses: the zoo, its stacked tensors, streams, checkpoints."""
