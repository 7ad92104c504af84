"""Operations on stored studies, such as open, stop, enqueue and report."""
