"""The validate stage: exported and simplified graphs against the original model."""
