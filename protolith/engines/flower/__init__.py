"""Real sites over the network, with Flower. Nothing outside this room imports flwr."""
