"""Operations on stored studies: open, stop, enqueue, export, report."""
