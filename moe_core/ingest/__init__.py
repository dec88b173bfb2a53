"""From a Hugging Face configuration to one MoE problem per layer. Reads local files and nothing else."""

from moe_core.ingest.build import ingest
from moe_core.ingest.errors import IngestError, Trouble
from moe_core.ingest.source import Source
from moe_core.ingest.values import IngestedModel, KeyRead, LayerGroup

__all__ = ["IngestError", "IngestedModel", "KeyRead", "LayerGroup", "Source", "Trouble", "ingest"]
