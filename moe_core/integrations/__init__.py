"""Embedding of selected layers in other libraries."""
