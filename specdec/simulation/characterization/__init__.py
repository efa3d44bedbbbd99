"""How much of a draft a target accepts, over temperature, top-p and task, measured on real text."""
