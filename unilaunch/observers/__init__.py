"""Who is told the numbers of a run while it runs: TensorBoard, MLflow and OpenTelemetry."""
