"""The log made visible: strips of records and markers in offset order, and how they came about."""
