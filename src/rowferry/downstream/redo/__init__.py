"""What a redo log holds, written downstream when there is no source any more."""
