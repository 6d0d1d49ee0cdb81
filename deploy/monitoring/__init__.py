"""Prometheus rules, Alertmanager routes, and the Grafana dashboard written by code."""
