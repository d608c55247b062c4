"""How fast it is: ratios measured in one run on one machine, against a plain loop and the machine's limit."""
