"""Small bridges to training stacks. Each imports its stack only when it is used."""
