"""Prints where the windows of calendars begin, by Python's zoneinfo: a line for each window kind and zone.

    calendar_windows.py FIRST LAST ZONE...

FIRST and LAST are years. A line is the kind, the zone and the Unix times in s, separated by spaces. The local time is
looked at every 15 minutes, which is finer than any clock is moved.
"""

import calendar
import sys
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

STEP = 900
WEEKDAYS = {"week-monday": 0, "week-thursday": 3, "week-sunday": 6}
MONTH_DAYS = {"month-1": 1, "month-15": 15, "month-29": 29, "month-31": 31}


def starts_month(local, day):
    return local.day == min(day, calendar.monthrange(local.year, local.month)[1])


def windows(zone, first, last):
    found = {kind: [] for kind in ["hour", "day", *WEEKDAYS, *MONTH_DAYS]}
    start = int(datetime(first, 1, 1, tzinfo=timezone.utc).timestamp())
    end = int(datetime(last + 1, 1, 1, tzinfo=timezone.utc).timestamp())
    before = None
    for time in range(start, end, STEP):
        local = datetime.fromtimestamp(time, zone)
        if before is not None:
            if local.minute == 0:
                found["hour"].append(time)
            if local.date() != before.date():
                found["day"].append(time)
                for kind, weekday in WEEKDAYS.items():
                    if local.weekday() == weekday:
                        found[kind].append(time)
                for kind, day in MONTH_DAYS.items():
                    if starts_month(local, day):
                        found[kind].append(time)
        before = local
    return found


first, last = int(sys.argv[1]), int(sys.argv[2])
for name in sys.argv[3:]:
    for kind, times in windows(ZoneInfo(name), first, last).items():
        print(kind, name, *times)
