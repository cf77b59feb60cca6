"""The validate stage: exported and simplified graphs against PyTorch."""
