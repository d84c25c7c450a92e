"""Opens, validates and makes checkpoints: configuration, census of tensors, reader, mint."""
