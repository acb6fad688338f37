"""Makes spark.read.format("gantry") known: Spark looks for modules named pyspark_*. Imports nothing until asked."""
