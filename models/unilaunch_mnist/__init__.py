"""The data-parallel MNIST network of MindSpore's mpirun tutorial: one training on both frameworks."""
