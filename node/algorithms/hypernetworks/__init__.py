"""Hypernetworks: pFedHN, GHN and SHN."""
