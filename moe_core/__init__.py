"""Explained selection and execution of Mixture-of-Experts layers."""
