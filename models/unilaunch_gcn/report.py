"""The layout of `unilaunch report` for runs of the GCN."""

from unilaunch.interfaces.report_layout import Plot, ReportLayout, Value

#: Each task has some of them.
_METRICS = {"accuracy": "accuracy", "micro_f1": "micro-F1", "mae": "mean absolute error", "rmse": "RMSE"}
_FRACTIONS = {"accuracy", "micro_f1"}
LAYOUT = ReportLayout(
    step="epoch",
    series="epochs.jsonl",
    plots=(
        Plot("Loss", (Value("loss", "loss"),)),
        Plot("Validation loss", (Value("val_loss", "validation loss"),)),
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
        Plot(
            "Root of the mean squared error",
            (Value("train_rmse", "train"), Value("val_rmse", "validation"), Value("test_rmse", "test")),
        ),
    ),
    figures=(
        Value("dataset", "data set"),
        Value("epochs", "epochs"),
        *(
            Value(f"{split}_{metric}", f"{name} {words}", percent=metric in _FRACTIONS)
            for metric, words in _METRICS.items()
            for split, name in (("train", "train"), ("val", "validation"), ("test", "test"))
        ),
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
        Value("peak_memory_bytes", "peak MB of its own", per=1_000_000),
    ),
)
