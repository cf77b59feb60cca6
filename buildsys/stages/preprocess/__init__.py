"""Preprocessing of raw images in front of graphs, compared with torchvision's transforms."""
