"""Stands in for torchvision, which gossipy imports for data sets that are not used here."""
