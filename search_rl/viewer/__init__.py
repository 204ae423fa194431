"""What people look at: episodes in a terminal, learning curves as a picture."""
