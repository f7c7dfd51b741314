"""The Pulsar sink: changes as messages in topics, repeats known by their sequence ids."""
