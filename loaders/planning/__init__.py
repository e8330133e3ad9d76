"""What a balanced loader adds to plans of a step: encoders, limits, and answers about coming steps."""
