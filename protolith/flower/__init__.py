"""A real federation over the network, with Flower: the engine, a site's half, and how it is deployed."""
