"""AWS Glue as the catalog of Iceberg tables: its interface, the login, and how a commit is made."""
