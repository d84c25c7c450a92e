"""Block drafters: DFlash, DSpark and DFlash2 checkpoints, their layers and their heads."""
