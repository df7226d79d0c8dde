"""Work with recordings: fit a model, filter, score, choose the number of latents, simulate."""
