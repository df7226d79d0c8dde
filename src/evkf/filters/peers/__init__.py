"""The filters that the paper compares with, one file a method, and what several of them share."""
