"""The variance that is lost when natural parameters are averaged (section 3.6)."""
