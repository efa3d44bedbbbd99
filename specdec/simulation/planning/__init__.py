"""How many replicas of which layout a load needs, from hardware numbers and acceptance."""
