"""What `ug.torch` and `ug.mindspore` share: the fields of a part, checks, and the layers; no framework is imported."""
