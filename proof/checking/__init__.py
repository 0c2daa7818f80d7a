"""The rooms of the checker: pure folds over logs, the group's commits, and what processes wrote down."""
