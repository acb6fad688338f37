"""Spark looks for modules named pyspark_*: this one makes spark.read.format("gantry") known; imports nothing until asked."""
