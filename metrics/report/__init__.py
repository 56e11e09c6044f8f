"""The results of runs, to be looked at: one page, or the figures of a paper."""
