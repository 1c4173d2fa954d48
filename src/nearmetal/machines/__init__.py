"""Machines and the layers that make them; one file a layer."""
