"""Object stores: S3, GCS and Azure."""
