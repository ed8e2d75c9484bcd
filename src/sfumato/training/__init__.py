"""Training a method into a folder, and what training loops share; it reaches methods through a protocol alone."""
