"""The protocol, one topic a file: functions from a call to a response."""
