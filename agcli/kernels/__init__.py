"""Device kernels."""
