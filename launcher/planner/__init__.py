"""The planner: plays a scenario as a discrete-event simulation before a process starts. Pure: no sockets, no clock."""
