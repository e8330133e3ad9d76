"""How phases with costs of their own are divided; `balancer.phases` is the front."""
