"""What a person writes to describe a study: the spec, its sections, its checks and its errors."""
