"""The same network, answered faster: half precision where safe, compilation, one CUDA graph per batch size."""

from zipbrain.acceleration.accelerated import Accelerated
from zipbrain.acceleration.equivalence import Verdict
from zipbrain.acceleration.optimise import accelerate
from zipbrain.acceleration.report import AccelerationReport, Measured, Optimisation

__all__ = ["Accelerated", "AccelerationReport", "Measured", "Optimisation", "Verdict", "accelerate"]
