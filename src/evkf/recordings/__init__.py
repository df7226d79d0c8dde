"""A model and a recording: fit, filter, score, and choose the number of latents."""
