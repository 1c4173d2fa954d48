"""What is sampled on the host beside a run; one file a concern."""
