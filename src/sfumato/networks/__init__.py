"""Plain torch modules and samplers, without privacy code."""
