"""The commands, one file each: they parse nothing, call the rooms below and print."""
