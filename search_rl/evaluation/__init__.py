"""Greedy evaluation: run every question, count every question, say how sure the numbers are."""
