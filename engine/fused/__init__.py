"""A decode step in five kernels a layer, for GPUs where launching kernels is most of a step."""
