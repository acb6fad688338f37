"""The PySpark data source, a client of the native pull API."""
