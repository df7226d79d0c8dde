"""A model and a recording: fit, filter, score, choose the number of latents, simulate."""
