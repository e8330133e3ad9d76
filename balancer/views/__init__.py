"""A plan as bytes, JSON, table, picture and timeline. Everything heavy is imported when it is used."""
