"""Speed and memory, as tables beside published figures. Never a pass or fail on seconds."""
