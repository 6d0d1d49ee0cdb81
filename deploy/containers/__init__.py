"""The containers of a profile on this host, what they are made of, and their weights."""
