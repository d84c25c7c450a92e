"""The engine: opens a checkpoint, prefills prompts and decodes, on one device or in stages."""
