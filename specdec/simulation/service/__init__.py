"""A service of many replicas in virtual time: queues, batches, drafts apart, networks, failures."""
