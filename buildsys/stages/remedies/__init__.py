"""Remedies for operators without a translation or an implementation; see docs/remedies."""
