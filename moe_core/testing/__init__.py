"""The published test kit: what holds for our own candidates, for yours as well."""
