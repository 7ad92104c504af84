"""What the two versions of a model are called that answer requests; the registry's aliases have the same names."""

CHAMPION, CHALLENGER = "champion", "challenger"
