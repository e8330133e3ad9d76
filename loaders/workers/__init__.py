"""Reading in worker processes and under time limits, and what is told when a reader dies or stands still."""
