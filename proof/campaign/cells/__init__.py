"""The cells, a module per theme; `proof.campaign.matrix` puts them together."""
