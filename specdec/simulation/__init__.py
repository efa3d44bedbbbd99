"""Speculation without GPUs: closed formulas, and a simulator that drives the real controller."""
