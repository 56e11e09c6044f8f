"""The tables and figures of the paper of Sheaf-FMTL, run again and put beside what it reports."""
