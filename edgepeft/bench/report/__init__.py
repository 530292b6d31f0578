"""Reports for people: tables, pages and pictures of results."""
