"""The log as people should see it: strips of records and markers in offset order, and how they came about."""
