"""MySQL's DDL: text to definitions, and definitions to text."""
