"""The figures and curves that `unilaunch report` shows for an MNIST training."""

from unilaunch.interfaces.report_layout import Plot, ReportLayout, Value

LAYOUT = ReportLayout(
    step="epoch",
    plots=(
        Plot("Loss", (Value("loss", "loss"),)),
        Plot("Test accuracy", (Value("test_accuracy", "test accuracy"),), percent=True),
    ),
    figures=(
        Value("num_train", "training images"),
        Value("num_test", "test images"),
        Value("batch_size", "images per batch"),
        Value("epochs", "epochs"),
        Value("test_accuracy", "test accuracy", percent=True),
        Value("seconds_per_epoch", "seconds per epoch"),
    ),
)
