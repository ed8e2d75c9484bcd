"""Which method, for how long and to what use, from public facts alone; above ``methods``."""
