"""The commands of `evkf`, one module each, and the options and output they share."""
