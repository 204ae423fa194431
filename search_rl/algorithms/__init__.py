"""Advantage estimators and reward shaping that verl lacks or gets wrong for void episodes, as pure functions."""
