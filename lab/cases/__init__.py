"""One module per kernel family: the inputs it is tried on."""
