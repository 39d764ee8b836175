"""What tests share: mods, references, data and checks."""
