"""The layout of `unilaunch report` for runs of the GCN."""

from unilaunch.report_layout import Plot, ReportLayout, Value

LAYOUT = ReportLayout(
    step="epoch",
    series="epochs.jsonl",
    plots=(
        Plot("Loss", (Value("loss", "loss"),)),
        Plot(
            "Accuracy",
            (Value("train_accuracy", "train"), Value("val_accuracy", "validation"), Value("test_accuracy", "test")),
            percent=True,
        ),
        Plot(
            "Micro-F1",
            (Value("train_micro_f1", "train"), Value("val_micro_f1", "validation"), Value("test_micro_f1", "test")),
            percent=True,
        ),
        Plot(
            "Mean absolute error",
            (Value("train_mae", "train"), Value("val_mae", "validation"), Value("test_mae", "test")),
        ),
    ),
    figures=(
        Value("dataset", "data set"),
        Value("epochs", "epochs"),
        Value("train_accuracy", "train accuracy", percent=True),
        Value("val_accuracy", "validation accuracy", percent=True),
        Value("test_accuracy", "test accuracy", percent=True),
        Value("seconds_per_epoch", "seconds per epoch"),
        Value("compute_seconds", "of which computing"),
        Value("communication_seconds", "of which communicating"),
        Value("bytes_per_epoch", "halo bytes per epoch"),
        Value("num_nodes", "nodes"),
        Value("num_parts", "parts"),
    ),
    columns=(
        Value("owned", "owned nodes"),
        Value("halo", "halo nodes"),
        Value("bytes_per_epoch", "bytes per epoch"),
        Value("peak_memory_bytes", "peak MB", per=1_000_000),
    ),
)
