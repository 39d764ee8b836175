"""Arguments of calls: checked, cast, described."""
