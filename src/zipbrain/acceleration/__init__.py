"""The same network, answered faster: half precision where safe, compilation, one CUDA graph per batch size.

The room is not called ``accelerate``: a module of that name would hide the function ``zipbrain.accelerate``.
"""

from zipbrain.acceleration.accelerated import Accelerated
from zipbrain.acceleration.equivalence import Verdict
from zipbrain.acceleration.optimise import accelerate
from zipbrain.acceleration.report import Measured, Report, Step

__all__ = ["Accelerated", "Measured", "Report", "Step", "Verdict", "accelerate"]
