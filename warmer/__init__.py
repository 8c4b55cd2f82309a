"""Cache warm-up and invalidation under the leases that request paths use."""
