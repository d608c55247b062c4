"""Ray: clients' work on the machines of a cluster that you own."""
