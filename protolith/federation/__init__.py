"""The server loop, the clients' work, the guards."""
