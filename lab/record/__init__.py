"""The store of results and the environment they were made in."""
