"""What is seen of a server that runs: finds one, asks it, and writes down what came of it."""
