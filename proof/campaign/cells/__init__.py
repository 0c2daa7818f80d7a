"""The cells, one module per theme; `proof.campaign.campaign` combines them."""
