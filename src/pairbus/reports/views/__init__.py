"""The bill and the certificate for people and programs. Views read values; no value knows a view."""
