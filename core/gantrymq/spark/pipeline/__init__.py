"""A Spark project to begin with: `gantry pipeline init` writes what lies in `project/`."""
