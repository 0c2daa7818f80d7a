"""The checker: pure folds over logs, the group's commits, and journals."""
