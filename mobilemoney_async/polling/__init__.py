"""Following many payments at once on one merchant's request limit."""
