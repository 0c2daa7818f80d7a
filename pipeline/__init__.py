"""The orders application: enriches orders with a loyalty tier, exactly once, with the library `brew`."""
