"""One module per kernel family: declarations and launchers."""
