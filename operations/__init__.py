"""Tools for people who operate a cluster: preflight, lag, explain, doctor, X-ray, live view, dead letters."""
