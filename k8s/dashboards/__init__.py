"""Grafana dashboards as code: `python -m k8s.dashboards` writes the JSON that Kustomize applies."""
