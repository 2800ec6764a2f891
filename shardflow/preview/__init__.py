"""Looking: pictures and a page of what is in a dataset."""
