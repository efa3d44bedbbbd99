"""What makes the documentation site beside its pages."""
