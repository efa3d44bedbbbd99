"""Published measurements of speculation in serving, beside what the simulator makes of them."""
