"""How a step is divided. `balancer.plan_step` is the front."""
