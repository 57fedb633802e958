"""Failures that people who run gateways have reported, each as scenarios against a real gateway process."""
