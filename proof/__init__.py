"""What finds and proves: seeds the input, describes groups and logs, checks that every order came out exactly once."""
