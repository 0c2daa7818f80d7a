"""The cells, a module per theme; `proof.campaign.campaign` puts them together."""
