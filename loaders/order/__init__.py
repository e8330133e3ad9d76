"""Which sample stands where: functions of a position, and no list of indices."""
