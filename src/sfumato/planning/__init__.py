"""Which method, for how long and to what use, from public facts alone; it may import methods and what lies below."""
