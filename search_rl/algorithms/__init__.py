"""Advantage estimators that verl lacks, as pure functions of (rewards, mask, group)."""
