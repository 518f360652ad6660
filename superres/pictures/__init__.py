"""Picture files: read them as upright sRGB pixels, write results, and mark what a model drew."""
