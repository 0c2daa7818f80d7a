"""Commands for whoever operates the pipeline: preflight, lag, explain, doctor; they read only, unless told."""
