"""The network as a program of torch.export."""
