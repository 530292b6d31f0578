"""What people read: tables of results."""
