"""Who owns what, from a topic alone: messages, the fold over them, and what a member decides (docs/CLAIMS.md)."""
