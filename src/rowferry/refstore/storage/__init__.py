"""What one range keeps: its log and journal on disk, its state and its snapshots."""
