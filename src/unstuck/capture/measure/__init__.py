"""Numbers read from tensors: gauges, samples, histograms, timings."""
