"""Programs beside the project: nothing in it imports them."""
