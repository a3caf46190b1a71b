"""What to guess and how much: cost curve, acceptance estimate, node selection, the never-slower gate."""
