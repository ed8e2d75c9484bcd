"""Plain torch modules and samplers, without privacy code; they import nothing else of the package."""
